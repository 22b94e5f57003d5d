//! Decrypts objects of a repository, and decompresses them up to a limit.
//!
//! The library decompresses without a limit. Therefore each object is decompressed here first, its
//! bytes are counted and dropped, and the library gets only objects within the limit. Content is
//! decompressed only here.

use std::fmt;
use std::io::Read;

use aes256ctr_poly1305aes::aead::{Aead, Nonce};
use aes256ctr_poly1305aes::{Aes256CtrPoly1305Aes, Key};
use rustic_core::repofile::MasterKey;

/// Size of the initialization vector, which precedes the ciphertext.
const NONCE_BYTES: usize = 16;
/// Size of the decompression buffer.
const CHUNK_BYTES: usize = 64 << 10;
/// First byte of a compressed object.
const COMPRESSED: u8 = 2;
/// Magic number of a zstd frame; the JSON of a tree never begins with it.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The key of a repository.
pub struct RepoKey(Aes256CtrPoly1305Aes);

impl fmt::Debug for RepoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

/// The size of a text, and an upper bound of its JSON objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
    /// Opening braces.
    pub braces: u64,
}

impl RepoKey {
    /// Creates it from a master key; `None`: the key is invalid.
    pub fn new(master: &MasterKey) -> Option<RepoKey> {
        let key = [
            master.encrypt.as_slice(),
            master.mac.k.as_slice(),
            master.mac.r.as_slice(),
        ]
        .concat();
        (key.len() == 64).then(|| RepoKey(Aes256CtrPoly1305Aes::new(Key::from_slice(&key))))
    }

    /// Decrypts an object; `None`: its authentication code does not match.
    pub fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_BYTES)?;
        let nonce = Nonce::<Aes256CtrPoly1305Aes>::from_slice(nonce);
        self.0.decrypt(nonce, sealed).ok()
    }
}

/// The size of a whole object after decryption and decompression; `None`: more than `most` bytes.
pub fn size_of_object(opened: &[u8], most: u64) -> Option<Size> {
    match opened.split_first() {
        Some((&COMPRESSED, packed)) => size_of(packed, most),
        _ => Some(count(opened)),
    }
    .filter(|size| size.bytes <= most)
}

/// As [`size_of_object`], for a tree.
pub fn size_of_tree(opened: &[u8], most: u64) -> Option<Size> {
    match opened.starts_with(&ZSTD) {
        true => size_of(opened, most),
        false => Some(count(opened)),
    }
    .filter(|size| size.bytes <= most)
}

fn count(text: &[u8]) -> Size {
    Size {
        bytes: text.len() as u64,
        braces: text.iter().filter(|byte| **byte == b'{').count() as u64,
    }
}

/// Returns the size, of damaged input up to the damage: the library needs no more memory for it.
fn size_of(packed: &[u8], most: u64) -> Option<Size> {
    let mut size = Size::default();
    let Ok(mut unpacked) = zstd::stream::read::Decoder::new(packed) else {
        return Some(size);
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(read @ 1..) = unpacked.read(&mut chunk) {
        let more = count(chunk.get(..read).unwrap_or_default());
        size.bytes += more.bytes;
        size.braces += more.braces;
        if size.bytes > most {
            return None;
        }
    }
    Some(size)
}

/// Decompresses to exactly `length` bytes; `None`: the length differs.
pub fn unpack(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    let unpacked = zstd::bulk::decompress(packed, length).ok()?;
    (unpacked.len() == length).then_some(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: usize) -> Vec<u8> {
        zstd::bulk::compress(&vec![b'{'; bytes], 1).expect("compressed")
    }

    #[test]
    fn no_more_is_decompressed_than_a_limit() {
        let most = 1 << 20;
        let object = |bytes| [&[COMPRESSED], packed(bytes).as_slice()].concat();
        let size = Size {
            bytes: most,
            braces: most,
        };
        let at = usize::try_from(most).expect("small");
        assert_eq!(size_of_object(&object(at), most), Some(size));
        assert_eq!(size_of_object(&object(at + 1), most), None);
        assert_eq!(size_of_tree(&packed(at), most), Some(size));
        assert_eq!(size_of_tree(&packed(at + 1), most), None);
        assert_eq!(size_of_tree(&vec![b'{'; at], most), Some(size));
        assert_eq!(size_of_tree(&vec![b'{'; at + 1], most), None);
        // Several frames form one object.
        let twice = [packed(at / 2), packed(at / 2)].concat();
        assert_eq!(size_of_tree(&twice, most), Some(size));
        assert_eq!(size_of_tree(&twice, most - 1), None);
    }

    #[test]
    fn a_blob_has_its_length() {
        assert_eq!(unpack(&packed(5), 5), Some(vec![b'{'; 5]));
        assert_eq!(unpack(&packed(5), 4), None);
        assert_eq!(unpack(&packed(5), 6), None);
        let twice = [packed(5), packed(5)].concat();
        assert_eq!(
            (unpack(&twice, 10).is_some(), unpack(&twice, 5)),
            (true, None)
        );
        // Truncated and empty input.
        let _ = (
            unpack(&packed(5)[..4], 5),
            unpack(b"", 5),
            size_of_tree(&ZSTD, 5),
        );
    }
}
