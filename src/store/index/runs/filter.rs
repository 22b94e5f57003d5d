//! A Bloom filter, which excludes keys of a run without reading it (Bloom, 1970; double hashing by
//! Kirsch and Mitzenmacher, 2006).

/// Bits for each key. With seven probes the false-positive rate is 1 %.
const BITS_A_KEY: usize = 10;
const PROBES: u64 = 7;

/// The two hashes of a key.
#[derive(Clone, Copy, Debug)]
pub struct Probe(u64, u64);

impl Probe {
    pub fn of(key: &[u8]) -> Probe {
        let mut hash = [0; 16];
        blake3::Hasher::new()
            .update(key)
            .finalize_xof()
            .fill(&mut hash);
        let (one, two) = hash.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Probe(number(one), number(two) | 1)
    }
}

/// The bits of the filter.
#[derive(Debug, Default)]
pub struct Filter(Vec<u8>);

impl Filter {
    /// Creates the filter of these keys.
    pub fn of(keys: &[Probe]) -> Filter {
        let mut filter = Filter(vec![0; (keys.len().saturating_mul(BITS_A_KEY) / 8).max(8)]);
        keys.iter().for_each(|probe| filter.add(*probe));
        filter
    }

    pub fn from_bytes(bytes: &[u8]) -> Filter {
        Filter(bytes.to_vec())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn add(&mut self, probe: Probe) {
        for (byte, mask) in places(probe, self.0.len()) {
            if let Some(byte) = self.0.get_mut(byte) {
                *byte |= mask;
            }
        }
    }

    /// Returns `false` only for a key that was never added.
    pub fn may_have(&self, probe: Probe) -> bool {
        places(probe, self.0.len())
            .all(|(byte, mask)| self.0.get(byte).is_none_or(|byte| byte & mask != 0))
    }
}

fn places(Probe(one, two): Probe, bytes: usize) -> impl Iterator<Item = (usize, u8)> {
    let bits = (bytes as u64).saturating_mul(8).max(1);
    (0..PROBES).map(move |n| {
        let bit = one.wrapping_add(n.wrapping_mul(two)) % bits;
        ((bit / 8) as usize, 1 << (bit % 8))
    })
}
