//! Throughput and depth over time, from samples of a load.

use crate::page::{Curve, Item, Table, Timeline};
use crate::quantity::{float, format_rate, format_seconds};
use tload_base::options::format_bytes;

/// Most samples of a load. When there are more, every second one is dropped, and the time between
/// two is doubled, so that a load of hours takes no more memory than one of seconds.
const SAMPLES_MAX: usize = 192;

/// Time between the first samples: a load of a tenth of a second has ten.
const FIRST_STEP_SECONDS: f64 = 0.01;

/// Points of a curve of rates.
const POINTS: f64 = 60.0;

/// Least number of samples for a picture.
const DRAWN_MIN: usize = 4;

/// State of a load at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Seconds since the load began.
    pub seconds: f64,
    /// Bytes read from storage so far.
    pub read_bytes: u64,
    /// Bytes of the tensors received so far.
    pub received_bytes: u64,
    /// Limit of the bytes in flight.
    pub in_flight_bytes: u64,
}

/// Bounded record of a load over time.
#[derive(Clone, Debug)]
pub struct Samples {
    moments: Vec<Moment>,
    step: f64,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            moments: Vec::new(),
            step: FIRST_STEP_SECONDS,
        }
    }
}

impl Samples {
    /// Returns whether the next sample is due `seconds` after the beginning of the load.
    #[must_use]
    pub fn is_due(&self, seconds: f64) -> bool {
        let last = self.moments.last();
        last.is_none_or(|last| seconds >= last.seconds + self.step)
    }

    /// Adds a sample, also one that is not due: the last one of a load.
    pub fn add(&mut self, moment: Moment) {
        if self.moments.len() == SAMPLES_MAX {
            let mut index = 0;
            self.moments.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.step *= 2.0;
        }
        self.moments.push(moment);
    }

    /// Returns the samples in the order of time.
    #[must_use]
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// Returns the pictures and the table; nothing if there are too few samples to draw.
    pub(crate) fn items(&self) -> Vec<Item> {
        if self.moments.len() < DRAWN_MIN {
            return Vec::new();
        }
        let pairs = || self.moments.iter().zip(self.moments.iter().skip(1));
        let end = self.moments.last().map_or(0.0, |last| last.seconds);
        let rate = |get: fn(&Moment) -> u64| self.rates(end / POINTS, get);
        let (read, received) = (rate(|it| it.read_bytes), rate(|it| it.received_bytes));
        let depth = |it: &Moment| (it.seconds, float(it.in_flight_bytes));
        let depth: Vec<_> = self.moments.iter().map(depth).collect();
        let rates = drawn(
            "Throughput",
            end,
            &[
                Series {
                    name: "read from storage",
                    colour: "a",
                    points: &read,
                },
                Series {
                    name: "tensors received",
                    colour: "b",
                    points: &received,
                },
            ],
            format_rate,
        );
        let bytes = |bytes: f64| format_bytes(whole(bytes));
        let limits = drawn(
            "Depth",
            end,
            &[Series {
                name: "limit of the bytes in flight",
                colour: "a",
                points: &depth,
            }],
            bytes,
        );
        let titles = [
            "time",
            "#read",
            "#received",
            "#limit in flight",
            "#read/s",
            "#received/s",
        ];
        let rows = pairs().map(|(one, other)| {
            let seconds = (other.seconds - one.seconds).max(f64::EPSILON);
            let rate = |from: u64, to: u64| format_rate(float(to.saturating_sub(from)) / seconds);
            vec![
                format!("{:.3} s", other.seconds),
                format_bytes(other.read_bytes),
                format_bytes(other.received_bytes),
                format_bytes(other.in_flight_bytes),
                rate(one.read_bytes, other.read_bytes),
                rate(one.received_bytes, other.received_bytes),
            ]
        });
        let table = Table::new("All samples", &titles)
            .of_size(32_000)
            .with_rows(rows)
            .folded();
        vec![
            Item::Timeline(rates),
            Item::Timeline(limits),
            Item::Table(table),
        ]
    }
}

impl Samples {
    /// Returns times and rates: means over `step` seconds at least, since reads end in bursts.
    fn rates(&self, step: f64, get: fn(&Moment) -> u64) -> Vec<(f64, f64)> {
        let mut rates = Vec::new();
        let mut last: Option<&Moment> = None;
        for moment in &self.moments {
            let Some(before) = last else {
                last = Some(moment);
                continue;
            };
            let seconds = moment.seconds - before.seconds;
            if seconds > 0.0 && seconds >= step {
                let bytes = float(get(moment).saturating_sub(get(before)));
                rates.push((moment.seconds, bytes / seconds));
                last = Some(moment);
            }
        }
        rates
    }
}

/// Values over time, to be drawn.
struct Series<'a> {
    name: &'static str,
    colour: &'static str,
    points: &'a [(f64, f64)],
}

impl Series<'_> {
    fn most(&self) -> f64 {
        self.points
            .iter()
            .map(|(_, value)| *value)
            .fold(0.0, f64::max)
    }
}

/// Draws curves with a shared axis.
fn drawn(
    title: &'static str,
    end: f64,
    series: &[Series<'_>],
    format: impl Fn(f64) -> String,
) -> Timeline {
    let most = series.iter().map(Series::most).fold(0.0, f64::max);
    let place = |(at, value): &(f64, f64)| {
        let x = 1000.0 * at / end.max(f64::EPSILON);
        let y = 100.0 - 100.0 * value / most.max(f64::EPSILON);
        format!("{x:.0} {y:.1}")
    };
    let curve = |series: &Series<'_>| {
        let places: Vec<_> = series.points.iter().map(place).collect();
        Curve {
            name: series.name,
            colour: series.colour,
            path: format!("M{}", places.join("L")),
        }
    };
    let highest = series
        .iter()
        .map(|it| format!("{}: at most {}", it.name, format(it.most())));
    let highest: Vec<_> = highest.collect();
    Timeline {
        title,
        description: format!(
            "{title} over {}; {}",
            format_seconds(end),
            highest.join(", ")
        ),
        curves: series.iter().map(curve).collect(),
        top: format(most),
        half: format(most / 2.0),
        end: format_seconds(end),
    }
}

/// Rounds bytes for a label.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count of bytes that was an integer, or half of one"
)]
fn whole(bytes: f64) -> u64 {
    bytes.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: f64) -> Moment {
        Moment {
            seconds,
            ..Moment::default()
        }
    }

    #[test]
    fn samples_of_a_long_load_are_bounded_and_span_it() {
        let mut samples = Samples::default();
        let mut added = 0;
        for tick in 0..1_000_000_u32 {
            let seconds = f64::from(tick) * 0.01;
            if samples.is_due(seconds) {
                samples.add(moment(seconds));
                added += 1;
            }
        }
        let moments = samples.moments();
        assert!(moments.len() <= SAMPLES_MAX && moments.len() >= SAMPLES_MAX / 2);
        assert!(added < 4000, "{added}");
        assert!(moments.is_sorted_by(|one, other| one.seconds < other.seconds));
        assert!(moments[0].seconds < 0.01 && moments[moments.len() - 1].seconds > 9_900.0);
        let gaps = moments
            .windows(2)
            .map(|pair| pair[1].seconds - pair[0].seconds);
        assert!(gaps.fold(0.0, f64::max) <= 2.0 * samples.step + 0.1);
    }

    #[test]
    fn few_samples_are_not_drawn() {
        let mut samples = Samples::default();
        for seconds in [0.0, 0.1, 0.2] {
            samples.add(moment(seconds));
            assert!(samples.items().is_empty());
        }
        samples.add(moment(0.3));
        assert_eq!(samples.items().len(), 3);
    }
}
