//! A few numbers for many: medians, because other load on a machine only ever adds time.

/// The middle of the values, or the mean of the middle two; NaN if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len(), values.get(middle)) {
        (_, None) => f64::NAN,
        (length, Some(upper)) if length % 2 == 0 => (values[middle - 1] + upper) / 2.0,
        (_, Some(value)) => *value,
    }
}

/// The least time; NaN if there are none.
pub fn best(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::NAN, f64::min)
}

/// The median of `value / base`, round by round: what slows a whole round down cancels out.
pub fn median_ratio(values: &[f64], bases: &[f64]) -> f64 {
    median(values.iter().zip(bases).map(|(value, base)| value / base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_does_not_depend_on_order_or_outliers() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([1000.0, 1.0, 2.0, 4.0]), 3.0);
        assert_eq!(median([7.0]), 7.0);
        assert!(median([]).is_nan());
    }

    #[test]
    fn the_best_time_is_the_least() {
        assert_eq!(best([3.0, 1.5, 2.0]), 1.5);
        assert!(best([]).is_nan());
    }

    #[test]
    fn a_slow_round_does_not_change_the_ratio() {
        // Everything takes ten times as long in the second round.
        assert_eq!(median_ratio(&[2.0, 20.0, 2.0], &[1.0, 10.0, 1.0]), 2.0);
    }
}
