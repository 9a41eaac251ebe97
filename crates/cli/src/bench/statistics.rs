//! Summarizes measured times.

use serde::Serialize;

/// A time, or a difference of times.
pub(super) type Milliseconds = f64;

/// Percentiles rather than a mean: one busy moment of the machine would move a mean, and tells nothing of the rest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) p50_ms: Milliseconds,
    pub(super) p90_ms: Milliseconds,
    pub(super) p99_ms: Milliseconds,
    pub(super) min_ms: Milliseconds,
}

impl Summary {
    /// Sums up; of no samples at all every figure is not a number.
    pub(super) fn of(samples: &[Milliseconds]) -> Summary {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |percent| percentile(&sorted, percent);
        Summary { p50_ms: at(50), p90_ms: at(90), p99_ms: at(99), min_ms: at(0) }
    }
}

/// The nearest rank: the smallest sample that is not below `percent` per cent of them. Always a time that was seen.
fn percentile(sorted: &[Milliseconds], percent: usize) -> Milliseconds {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn summary(samples: &[f64]) -> [f64; 4] {
        let Summary { p50_ms, p90_ms, p99_ms, min_ms } = Summary::of(samples);
        [p50_ms, p90_ms, p99_ms, min_ms]
    }

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(summary(&hundred), [50.0, 90.0, 99.0, 1.0]);
        assert_eq!(summary(&[4.0, 1.0, 3.0, 2.0]), [2.0, 4.0, 4.0, 1.0]);
        assert_eq!(summary(&[7.5]), [7.5; 4]);
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        let mut samples = vec![2.0; 49];
        samples.push(9_000.0);
        assert_eq!(summary(&samples), [2.0, 2.0, 9_000.0, 2.0]);
    }

    #[test]
    fn of_nothing_there_is_no_figure() {
        assert!(summary(&[]).iter().all(|figure| figure.is_nan()));
    }

    proptest! {
        #[test]
        fn figures_are_ordered_and_were_all_seen(samples in prop::collection::vec(0.0..1e6, 1..200)) {
            let [p50, p90, p99, min] = summary(&samples);
            prop_assert!(min <= p50 && p50 <= p90 && p90 <= p99);
            for figure in [p50, p90, p99, min] {
                prop_assert!(samples.contains(&figure));
            }
        }

        #[test]
        fn half_of_the_samples_are_not_above_the_median(samples in prop::collection::vec(0.0..1e6, 1..200)) {
            let [p50, ..] = summary(&samples);
            prop_assert!(samples.iter().filter(|sample| **sample <= p50).count() * 2 >= samples.len());
        }
    }
}
