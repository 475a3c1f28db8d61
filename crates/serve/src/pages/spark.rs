//! Losses as lines without axes.

use std::fmt::Write;

const WIDTH: f32 = 120.0;
const HEIGHT: f32 = 26.0;

/// Curves in one box, in the colour of these classes.
pub(super) fn sparkline(curves: &[&[(f32, f32)]], class: &str) -> String {
    let finite = |points: &&[(f32, f32)]| -> Vec<(f32, f32)> {
        points.iter().copied().filter(|(_, y)| y.is_finite()).collect()
    };
    let curves: Vec<Vec<(f32, f32)>> = curves.iter().map(finite).collect();
    let all = || curves.iter().flatten();
    if all().next().is_none() {
        return String::new();
    }
    let range = |of: fn(&(f32, f32)) -> f32| {
        all().map(of).fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
    };
    let ((first, last), (low, high)) = (range(|p| p.0), range(|p| p.1));
    let (width, height) = ((last - first).max(1.0), (high - low).max(f32::MIN_POSITIVE));
    let mut text = format!(
        "<svg class=\"spark {class}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         aria-hidden=\"true\">"
    );
    for points in curves.iter().filter(|points| !points.is_empty()) {
        text.push_str("<path d=\"");
        for (place, (x, y)) in points.iter().enumerate() {
            let command = if place == 0 { 'M' } else { 'L' };
            let x = 1.0 + (x - first) / width * (WIDTH - 2.0);
            let y = 2.0 + (high - y) / height * (HEIGHT - 4.0);
            let _ = write!(text, "{command}{x:.0} {y:.1}");
        }
        text.push_str("\"/>");
    }
    text + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_stay_in_their_box_whatever_the_numbers() {
        assert_eq!(sparkline(&[], ""), "");
        assert_eq!(sparkline(&[&[(1.0, f32::NAN)]], ""), "");
        let flat = sparkline(&[&[(5.0, 2.0)]], "");
        assert!(flat.contains("M1 2.0"), "{flat}");
        let steep = sparkline(&[&[(0.0, 1e30), (1.0, 0.0)], &[(1.0, 0.0)]], "");
        assert!(steep.contains("M1 2.0L119 24.0") && steep.contains("M119 24.0"), "{steep}");
    }
}
