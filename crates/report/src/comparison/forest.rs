//! All differences with their intervals in one picture, the best first, depth by depth.
//!
//! Places are shares of the width, written as attributes of SVG. So it fits any width, needs no script and no style of
//! its own elements, which `hadal serve` forbids, and follows the page's colours, on paper too.

use crate::figure::plotly::escaped;
use crate::palette::Look;
use crate::statistics::Verdict;
use crate::words::signed;
use std::fmt::Write;

/// Its style. The page sets `--forest-ink`, `--forest-soft`, `--forest-line`, `--forest-ground` and `--forest-mark`,
/// and has [`crate::palette::css`].
pub const STYLE: &str = include_str!("../../assets/forest.css");

/// The differences of policies to their baseline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forest {
    /// What differs: `held-out loss`, in nats; lower is better.
    pub metric: String,
    /// What they are compared with.
    pub baseline: String,
    /// Policies, in any order.
    pub rows: Vec<Row>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Blocks, if several numbers of them are compared.
    pub depth: Option<usize>,
    /// Its colour.
    pub look: Look,
    /// The mean difference over seeds.
    pub mean: f64,
    /// Its 95 % interval; `None` for one seed.
    pub interval95: Option<(f64, f64)>,
    /// In a word.
    pub verdict: Verdict,
}

impl Row {
    fn ends(&self) -> (f64, f64) {
        self.interval95.unwrap_or((self.mean, self.mean))
    }
}

impl Forest {
    /// The picture; empty if there is nothing to compare.
    pub fn html(&self) -> String {
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.mean.is_finite()).collect();
        if rows.is_empty() {
            return String::new();
        }
        rows.sort_by(|a, b| a.depth.cmp(&b.depth).then(a.mean.total_cmp(&b.mean)));
        let (base, metric) = (escaped(&self.baseline), escaped(&self.metric));
        let several = rows.iter().any(|row| row.depth.is_some());
        let of_depth = if several { " at the same depth" } else { "" };
        let scale = Scale::of(&rows);
        let mut html = format!(
            "<figure class=\"forest\"><figcaption><h2>Difference in {metric} to {base}{of_depth}</h2><p>Nats; left is \
             better. Dots are means over seeds, lines 95 % intervals: one that crosses the line of {base} may be \
             luck.</p></figcaption>\n"
        );
        let anchor = scale.anchor(0.0);
        let _ = writeln!(
            html,
            "<div class=\"row base\"><svg class=\"track\"><text x=\"{}\" y=\"14\" text-anchor=\"{anchor}\">{base}</text></svg></div>",
            scale.percent(0.0)
        );
        let mut depth = None;
        let mut best = false;
        for row in rows {
            if row.depth != depth {
                depth = row.depth;
                best = false;
                let blocks = depth.unwrap_or(0);
                let _ = writeln!(html, "<h3>{blocks} blocks</h3>");
            }
            // The lowest mean alone is luck.
            let is_best = row.verdict == Verdict::Better && !best;
            best |= is_best;
            html += &drawn(row, is_best, &scale);
        }
        html += "<div class=\"row ticks\"><svg class=\"track\">";
        for tick in scale.ticks() {
            let text = if tick == 0.0 { "0".into() } else { signed(tick, scale.digits) };
            let (x, anchor) = (scale.percent(tick), scale.anchor(tick));
            let _ = write!(html, "<text x=\"{x}\" y=\"15\" text-anchor=\"{anchor}\">{text}</text>");
        }
        html + "</svg></div></figure>\n"
    }
}

fn drawn(row: &Row, is_best: bool, scale: &Scale) -> String {
    let class = match (is_best, row.verdict) {
        (true, _) => " best",
        (_, Verdict::Better | Verdict::Worse) => " told",
        _ => "",
    };
    let look = row.look.class();
    let mut html = format!(
        "<div class=\"row{class}\"><span class=\"name\"><i class=\"swatch {look}\"></i>{}{}</span>",
        escaped(&row.name),
        if is_best { " <b class=\"badge\">best</b>" } else { "" }
    );
    let (low, high) = row.ends();
    let (zero, mean) = (scale.percent(0.0), scale.percent(row.mean));
    let (from, to) = (scale.percent(low), scale.percent(high));
    let _ = write!(
        html,
        "<svg class=\"track {look}\" aria-hidden=\"true\"><line class=\"zero\" x1=\"{zero}\" x2=\"{zero}\" y1=\"0\" y2=\"100%\"/>"
    );
    if row.interval95.is_some() {
        let _ = write!(
            html,
            "<g class=\"reach\"><line x1=\"{from}\" x2=\"{to}\" y1=\"50%\" y2=\"50%\"/>"
        );
        for end in [from, to] {
            let _ = write!(html, "<line x1=\"{end}\" x2=\"{end}\" y1=\"32%\" y2=\"68%\"/>");
        }
        html += "</g>";
    }
    let _ = writeln!(
        html,
        "<circle cx=\"{mean}\" cy=\"50%\" r=\"5.5\"/></svg><span class=\"value\"><b>{}</b> {}</span></div>",
        signed(row.mean, 3),
        match row.interval95 {
            Some((low, high)) => format!("{} to {}", signed(low, 3), signed(high, 3)),
            None => "one seed".into(),
        }
    );
    html
}

/// The horizontal axis.
struct Scale {
    low: f64,
    high: f64,
    step: f64,
    digits: usize,
}

impl Scale {
    fn of(rows: &[&Row]) -> Self {
        let ends = rows.iter().map(|row| row.ends());
        let (low, high) =
            ends.fold((0.0_f64, 0.0_f64), |(low, high), (from, to)| (low.min(from), high.max(to)));
        let span = if high > low { high - low } else { 1e-6 };
        let power = 10.0_f64.powf((span / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = step.into_iter().find(|step| span / step <= 5.0).unwrap_or(span);
        let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        Self { low: low - 0.04 * span, high: high + 0.04 * span, step, digits }
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    fn percent(&self, value: f64) -> String {
        format!("{:.2}%", 100.0 * self.share(value))
    }

    /// Text near an end stays within.
    fn anchor(&self, value: f64) -> &'static str {
        match self.share(value) {
            share if share < 0.06 => "start",
            share if share > 0.94 => "end",
            _ => "middle",
        }
    }

    fn ticks(&self) -> Vec<f64> {
        let (first, last) = ((self.low / self.step).ceil(), (self.high / self.step).floor());
        (0..=(last - first).clamp(0.0, 20.0) as u32)
            .map(|i| (first + f64::from(i)) * self.step)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, mean: f64, half: f64, verdict: Verdict) -> Row {
        let interval95 = Some((mean - half, mean + half));
        Row { name: name.into(), depth: None, look: Look::default(), mean, interval95, verdict }
    }

    fn three() -> Forest {
        Forest {
            metric: "held-out loss".into(),
            baseline: "<prenorm>".into(),
            rows: vec![
                row("lns", 0.1, 0.3, Verdict::NotDistinguishable),
                row("nag", -0.35, 0.2, Verdict::Better),
                row("luck", -0.5, 0.9, Verdict::NotDistinguishable),
                row("mgr", -0.3, 0.1, Verdict::Better),
            ],
        }
    }

    #[test]
    fn the_best_is_the_lowest_that_is_better_and_no_interval_leaves_the_picture() {
        let html = three().html();
        let place = |name: &str| html.find(&format!("</i>{name}")).unwrap();
        assert!(["luck", "nag", "mgr", "lns"].map(place).is_sorted(), "{html}");
        assert_eq!(html.matches("class=\"badge\"").count(), 1);
        assert!(html.contains("</i>nag <b class=\"badge\">best</b>"), "{html}");
        assert!(html.contains("<b>−0.350</b> −0.550 to −0.150"), "{html}");
        for attribute in ["x1=\"", "x2=\"", "cx=\"", " x=\""] {
            for part in html.split(attribute).skip(1) {
                let share: f64 = part.split('%').next().unwrap().parse().unwrap();
                assert!((0.0..=100.0).contains(&share), "{attribute}{share}");
            }
        }
        assert!(!html.contains("<prenorm>") && !html.contains("style="), "{html}");
    }

    #[test]
    fn each_depth_has_its_own_best_on_one_scale() {
        let mut forest = three();
        for (row, depth) in forest.rows.iter_mut().zip([4, 4, 2, 2]) {
            row.depth = Some(depth);
        }
        let html = forest.html();
        let parts = ["2 blocks", "</i>luck", "</i>mgr <b", "4 blocks", "</i>nag <b", "</i>lns"];
        let places: Vec<usize> = parts.iter().map(|part| html.find(part).unwrap()).collect();
        assert!(places.is_sorted(), "{places:?} {html}");
        assert_eq!(html.matches("class=\"row ticks\"").count(), 1);
        assert!(html.contains("at the same depth"));
    }

    #[test]
    fn nobody_is_marked_where_nothing_can_be_told_apart() {
        let mut forest = three();
        forest.rows.retain(|row| row.verdict != Verdict::Better);
        let html = forest.html();
        assert!(html.contains("class=\"row\"") && !html.contains("badge"));
        assert_eq!(Forest::default().html(), "");
        forest.rows.truncate(1);
        forest.rows[0].mean = f64::NAN;
        assert_eq!(forest.html(), "");
    }

    #[test]
    fn ticks_are_round_and_few() {
        let scale = |half| Scale::of(&[&row("a", 0.0, half, Verdict::NotDistinguishable)]);
        assert_eq!(scale(0.5).ticks(), [-0.4, -0.2, 0.0, 0.2, 0.4]);
        assert!((2..8).contains(&scale(1e-9).ticks().len()));
        assert!(scale(0.0).ticks().len() < 8);
    }
}
