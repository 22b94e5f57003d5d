//! Samples and their statistics.

use std::time::{Duration, Instant};

/// Times in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn add(&mut self, time: Duration) {
        self.add_us(time.as_secs_f64() * 1e6);
    }

    pub fn add_us(&mut self, us: f64) {
        self.0.push(us);
    }

    /// Measures one call.
    pub fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = call();
        self.add(started.elapsed());
        result
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns every sample in the order of measurement, in microseconds.
    pub fn all(&self) -> &[f64] {
        &self.0
    }

    /// Returns the smallest sample that at least `share` of all samples do not exceed (nearest
    /// rank), in microseconds.
    pub fn at(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or(f64::NAN)
    }

    pub fn p50(&self) -> f64 {
        self.at(0.50)
    }

    pub fn p99(&self) -> f64 {
        self.at(0.99)
    }

    pub fn max(&self) -> f64 {
        self.at(1.0)
    }
}

/// Formats microseconds as milliseconds with significant digits.
pub fn ms(us: f64) -> String {
    match us {
        us if us < 10_000.0 => format!("{:.2}", us / 1e3),
        us if us < 100_000.0 => format!("{:.1}", us / 1e3),
        us => format!("{:.0}", us / 1e3),
    }
}
