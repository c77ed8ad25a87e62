//! The median of a sample, and how well it is known.

/// A median with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end of the interval.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Interval {
    /// The median of `values`; not a number where there are none.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        if count == 0 {
            return Self {
                low: f64::NAN,
                median: f64::NAN,
                high: f64::NAN,
            };
        }
        let rank = rank_of_lower_end(count);
        Self {
            low: sorted[rank],
            median: f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]),
            high: sorted[count - 1 - rank],
        }
    }
}

/// The rank (from 0) at which the 95 % interval of a median of `count` values begins: the number of
/// values below the median is binomial with one half, and each end may leave out 2.5 %.
fn rank_of_lower_end(count: usize) -> usize {
    #[expect(clippy::cast_precision_loss, reason = "samples are small")]
    let [n, mut k] = [count as f64, 0.0];
    let mut probability = 0.5_f64.powf(n);
    let mut left_out = probability;
    let mut rank = 0;
    while left_out <= 0.025 {
        probability *= (n - k) / (k + 1.0);
        k += 1.0;
        left_out += probability;
        if left_out <= 0.025 {
            rank += 1;
        }
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks (from 1) of the interval's ends, as tables of the sign test give them.
    fn check_ranks(count: usize, low: usize) {
        assert_eq!(rank_of_lower_end(count) + 1, low, "of {count}");
    }

    #[test]
    fn ranks_are_those_of_the_tables() {
        check_ranks(6, 1);
        check_ranks(10, 2);
        check_ranks(20, 6);
        check_ranks(30, 10);
        check_ranks(60, 22);
        check_ranks(100, 40);
    }

    #[test]
    fn median_lies_within_its_interval() {
        let found = Interval::of((1..=30).rev().map(f64::from));
        assert_eq!(
            found,
            Interval {
                low: 10.0,
                median: 15.5,
                high: 21.0
            }
        );
        assert!(Interval::of(std::iter::empty()).median.is_nan());
    }
}
