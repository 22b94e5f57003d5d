//! Seeded random numbers, and the settings of the tests that use them.

use std::time::{SystemTime, UNIX_EPOCH};

/// xorshift64*: the same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }

    /// Returns a random element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Returns true with probability 1/`times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Returns the value of the variable, else the default of the short or the long form.
pub fn count(variable: &str, usual: u64, long: u64) -> u64 {
    let told = std::env::var(variable)
        .ok()
        .and_then(|value| value.parse().ok());
    told.unwrap_or(if is_long() { long } else { usual })
}

/// Returns whether the long form was requested.
pub fn is_long() -> bool {
    std::env::var_os("CKPTFS_LONG").is_some_and(|value| value == "1")
}

/// Returns the requested seed (`CKPTFS_SEED`); `random` returns a different one each time.
pub fn told_seed() -> Option<u64> {
    match std::env::var("CKPTFS_SEED").ok()?.as_str() {
        "random" => Some(any_seed()),
        number => Some(number.parse().expect("CKPTFS_SEED is a number or `random`")),
    }
}

/// Returns a different seed each time.
pub fn any_seed() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
}

/// Returns the requested seed, else `usual`, and prints it, so that a run can be repeated.
pub fn seed(what: &str, usual: u64) -> u64 {
    let seed = told_seed().unwrap_or(usual);
    println!("{what}: CKPTFS_SEED={seed}");
    seed
}
