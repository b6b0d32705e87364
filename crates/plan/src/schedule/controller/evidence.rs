//! Mean of measurements in which older ones count less.

/// Exponentially weighted mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    pub(super) mean: f64,
    pub(super) weight: f64,
}

impl Evidence {
    pub(super) fn add(&mut self, value: f64, memory: f64) {
        self.weight = self.weight * memory + 1.0;
        self.mean += (value - self.mean) / self.weight;
    }
}
