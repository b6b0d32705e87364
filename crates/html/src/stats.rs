//! Order statistics, for few samples of unknown distribution.

use serde::Serialize;

/// Order statistics of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median: for an even number of samples, the mean of the two in the middle.
    pub median: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// Median absolute deviation from the median.
    pub mad: f64,
}

impl Spread {
    /// Returns the statistics of `samples`; `None` if there are none.
    pub fn new(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*samples.first()?, *samples.last()?);
        let median = middle(&samples);
        let mut deviations: Vec<f64> = samples
            .iter()
            .map(|sample| (sample - median).abs())
            .collect();
        deviations.sort_unstable_by(f64::total_cmp);
        Some(Self {
            median,
            min,
            max,
            mad: middle(&deviations),
        })
    }

    /// Returns the distance from the smallest to the largest sample as a share of the median.
    pub fn width(&self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            (self.max - self.min) / self.median
        }
    }
}

/// Returns the median of sorted samples: for an even number, the mean of the two in the middle.
fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[half]
    } else {
        f64::midpoint(sorted[half - 1], sorted[half])
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these are exact")]
mod tests {
    use super::*;

    #[test]
    fn odd_even_and_no_samples() {
        let odd = Spread::new([3.0, 1.0, 10.0]).unwrap();
        assert_eq!(
            odd,
            Spread {
                median: 3.0,
                min: 1.0,
                max: 10.0,
                mad: 2.0
            }
        );
        assert_eq!(odd.width(), 3.0);
        let even = Spread::new([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((even.median, even.mad), (2.5, 1.0));
        assert_eq!(Spread::new([]), None);
        let one = Spread::new([7.0]).unwrap();
        assert_eq!((one.median, one.mad, one.width()), (7.0, 0.0, 0.0));
    }
}
