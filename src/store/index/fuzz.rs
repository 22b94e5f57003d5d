//! Properties of the index's keys and values.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::journal::fuzz::checkpoint;
use ckptfs_api::Actor;
use ckptfs_testkit::config;

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        (0..3_u64, vec(0..3_u8, 0..4))
            .prop_map(|(slot, name)| Key::Entry(Slot(slot), Name::new(&name))),
        (any::<u64>(), vec(any::<u8>(), 0..40))
            .prop_map(|(slot, name)| Key::Entry(Slot(slot), Name::new(&name))),
        any::<u64>().prop_map(|slot| Key::Attr(Slot(slot))),
        any::<u64>().prop_map(|slot| Key::Data(Slot(slot))),
    ]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn keys_sort_as_what_they_are_made_of_and_come_back(a in key(), b in key(), epochs in any::<(u64, u64)>()) {
        let (one, other) = (keys::undo_prefix(&a), keys::undo_prefix(&b));
        let (with, other_with) = (keys::with_epoch(one.clone(), Epoch(epochs.0)), keys::with_epoch(other.clone(), Epoch(epochs.1)));
        if let (Key::Entry(dir, name), Key::Entry(other_dir, other_name)) = (&a, &b) {
            prop_assert_eq!(one.cmp(&other), (dir, name).cmp(&(other_dir, other_name)));
            prop_assert_eq!(keys::entry_name(&one), Some(name.clone()));
        }
        // Runs sort like the model, which appends the epoch to the key.
        prop_assert_eq!(with.cmp(&other_with), (&one, epochs.0).cmp(&(&other, epochs.1)));
        prop_assert_eq!(one == other, a == b);
    }

    #[test]
    fn values_come_back_and_changed_ones_do_not(key in vec(any::<u8>(), 0..60), value in vec(any::<u8>(), 0..60), at in any::<usize>(), bit in 0..8) {
        let sealed = keys::seal(&key, value.clone());
        prop_assert_eq!(keys::unseal(&key, &sealed), Some(&value[..]));
        let mut changed = sealed.clone();
        let at = at % changed.len();
        changed[at] ^= 1_u8 << bit;
        prop_assert_eq!(keys::unseal(&key, &changed), None);
        prop_assert_eq!(keys::unseal(&[&key[..], b"x"].concat(), &sealed), None);
    }

    #[test]
    fn any_bytes_are_an_entry_or_an_error(key in vec(any::<u8>(), 0..80), value in vec(any::<u8>(), 0..80)) {
        let _ = keys::entry_name(&key);
        let _ = keys::data_slot(&key);
        let _ = keys::parse_run(&key, &value);
        let _ = keys::parse_struck(&key, &value);
        let _ = keys::parse_checkpoint(&key);
        let _ = keys::parse_absence(&key, &value);
        let _ = keys::parse_dropped(&key, &value);
        let _ = keys::parse_operation(&key, &value);
        let _ = keys::unseal(&key, &value);
        let _ = CheckpointEntry::parse(&value);
        let _ = codec::decode_place(&value);
    }

    #[test]
    fn checkpoints_come_back(made in checkpoint(), flags in any::<(bool, bool)>(), pin in option::of("[a-z]{0,9}"), by in option::of(any::<(u32, u32)>()), at in any::<(u32, u32)>(), cut in any::<usize>()) {
        let at = Address { segment: at.0, offset: at.1 };
        let (deleted, hidden) = flags;
        let by = by.map(|(uid, pid)| Actor { uid, gid: uid, pid, process: "sh".into() });
        let kept = CheckpointState { hidden, pinned: pin, ..CheckpointState::new(made, by) };
        let bytes = CheckpointEntry { deleted, at, kept: kept.clone() }.bytes().expect("within the limits");
        let known = CheckpointEntry::parse(&bytes).expect("what was written");
        prop_assert_eq!((known.deleted, known.at, known.kept), (deleted, at, kept));
        prop_assert!(CheckpointEntry::parse(&bytes[..cut % bytes.len()]).is_none());
    }
}
