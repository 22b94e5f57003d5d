//! Properties of the control protocol: every request is decoded as sent, and every other input is
//! an error.

use std::io::BufReader;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use ckptfs_api::protocol::{PROTOCOL, RequestFrame, decode_answer, encode, receive_up_to};
use ckptfs_api::*;
use ckptfs_api::{Request, SavePolicy};
use ckptfs_testkit::{config, peak_of, spelled};

/// Maximum memory per byte of a message: three bytes of JSON can be a path, that is, a struct in a
/// vector that doubles.
const MEMORY_PER_BYTE: usize = 200;
/// Additional memory for any message.
const MEMORY: usize = 64 << 10;

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..20).prop_map(String::from_iter)
}

fn state() -> impl Strategy<Value = StateName> {
    text().prop_map(StateName)
}

fn request() -> impl Strategy<Value = Request> {
    let path = prop_oneof![vec(any::<u8>(), 0..40), text().prop_map(String::into_bytes)]
        .prop_map(TreePath);
    prop_oneof![
        (text(), vec(text(), 0..4), any::<bool>()).prop_map(|(note, tags, sync)| {
            Request::Checkpoint(CheckpointOptions {
                note,
                tags,
                sync,
                if_changed: !sync,
                quiesce_ms: sync.then_some(7),
                of_ns: sync.then_some(-1),
            })
        }),
        Just(GetStatus.into()),
        Just(ListCheckpoints.into()),
        state().prop_map(|state| ShowCheckpoint { state }.into()),
        (state(), option::of(state())).prop_map(|(from, to)| Compare {
            from,
            to,
            sizes: true
        }
        .into()),
        (state(), vec(path, 0..5), any::<bool>()).prop_map(
            |(to, paths, dry_run)| Request::Restore(RestoreOptions {
                to,
                paths,
                dry_run,
                times: None
            })
        ),
        (state(), any::<bool>()).prop_map(|(state, now)| Delete { state, now }.into()),
        any::<(bool, bool)>().prop_map(|(lazy, leave)| Unmount {
            lazy,
            leave,
            keep: lazy.then_some(SavePolicy::All)
        }
        .into()),
    ]
}

fn frame(request: &Request) -> Vec<u8> {
    encode(&RequestFrame {
        version: PROTOCOL,
        tree: None,
        request: request.clone(),
    })
    .expect("within the limit")
}

fn decode(frame: &[u8]) -> Option<Request> {
    let (request, peak) = peak_of(|| RequestFrame::decode(frame).ok().map(|call| call.request));
    assert!(
        peak <= MEMORY + MEMORY_PER_BYTE * frame.len(),
        "{peak} bytes for {}",
        frame.len()
    );
    request
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_request_arrives(request in request()) {
        let sent = frame(&request);
        prop_assert_eq!(sent.iter().filter(|byte| **byte == b'\n').count(), 1, "a frame is one line");
        prop_assert_eq!(decode(&sent[..sent.len() - 1]), Some(request));
    }

    #[test]
    fn any_bytes_are_a_request_or_an_error(bytes in prop_oneof![vec(any::<u8>(), 0..300), spelled(b"[]{}\",:0123456789ok\\u ", 200)]) {
        decode(&bytes);
        let _ = decode_answer::<Vec<CheckpointInfo>>(&bytes);
    }

    #[test]
    fn changed_requests_are_requests_or_errors(request in request(), at in any::<usize>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut sent = frame(&request);
        let at = at % sent.len();
        if cut { sent.truncate(at) } else { sent[at] = byte }
        decode(&sent);
        let _ = decode_answer::<Vec<CheckpointInfo>>(&sent);
    }

    /// Independent of how the bytes arrive, the same frames are read, none exceeds the limit, and
    /// the end is reported.
    #[test]
    fn frames_are_lines(bytes in vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200), room in 1..50_usize, limit in 1..60_usize) {
        let mut reader = BufReader::with_capacity(room, &bytes[..]);
        let (mut frame, mut rest) = (Vec::new(), &bytes[..]);
        loop {
            match receive_up_to(&mut reader, &mut frame, limit) {
                Ok(true) => {
                    prop_assert!(frame.len() < limit && !frame.contains(&b'\n'));
                    prop_assert_eq!(&rest[..=frame.len()], &[&frame[..], b"\n"].concat()[..]);
                    rest = &rest[frame.len() + 1..];
                }
                Ok(false) => {
                    prop_assert!(rest.is_empty());
                    break;
                }
                Err(error) => {
                    let long = rest.len() >= limit && !rest[..limit].contains(&b'\n');
                    prop_assert_eq!(error.kind() == std::io::ErrorKind::InvalidData, long);
                    prop_assert!(long || !rest.contains(&b'\n'));
                    break;
                }
            }
        }
    }
}
