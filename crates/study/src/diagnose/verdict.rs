//! What is wrong or right with a model's depth, in up to three sentences. They follow from the numbers alone, whatever
//! the policy is called.

use super::summary::{MASSIVE, Removal, Summary, USELESS};

/// Below this angle, in degrees, a block hardly turns what the next one reads.
pub const HARDLY: f64 = 5.0;
/// A block carries the model if it is missed this many times as much as the median block.
pub const CARRIES: f64 = 10.0;
/// Gradients of the first and the last block that differ by this factor are uneven.
pub const UNEVEN: f64 = 10.0;
/// From this share of the attention on, the first token is a sink.
pub const SINK: f64 = 0.3;
/// Up to this distance from the identity a mixer hardly mixes.
const MIXES: f64 = 0.05;
/// Sentences besides the headline.
const EVIDENCE: usize = 2;

/// An answer and the evidence for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The most important sentence, without a full stop.
    pub headline: String,
    /// Others, the most important first.
    pub sentences: Vec<String>,
}

impl Verdict {
    /// All sentences.
    pub fn all(&self) -> Vec<String> {
        let first = format!("{}.", self.headline);
        std::iter::once(first).chain(self.sentences.iter().cloned()).collect()
    }
}

impl Summary {
    /// What the numbers say about the model's depth.
    pub fn verdict(&self) -> Verdict {
        let removal = self.of_removals();
        let turns = self.of_turns();
        let headline = removal.clone().or_else(|| turns.clone().map(|turns| turns.words));
        // What was said already is not said again.
        let turns = turns.filter(|_| removal.is_some());
        let findings = [turns, self.of_the_dearest(), self.of_gradients(), self.of_activations()]
            .into_iter()
            .chain([self.of_the_sink(), self.of_skips()])
            .chain(self.of_streams())
            .chain(self.of_blocks())
            .flatten();
        // What stands out comes first.
        let (striking, calm): (Vec<_>, Vec<_>) = findings.partition(|finding| finding.strikes);
        let sentences = striking.into_iter().chain(calm).map(|f| format!("{}.", f.words));
        let Self { blocks, loss, perplexity, .. } = self;
        Verdict {
            headline: headline.unwrap_or_else(|| {
                format!("{blocks} blocks with a loss of {loss:.3} nats, perplexity {perplexity:.2}")
            }),
            sentences: sentences.take(EVIDENCE).collect(),
        }
    }

    fn of_removals(&self) -> Option<String> {
        let measured = |removal: &Removal| Some((removal.block, removal.loss_change?));
        let changes: Vec<(usize, f64)> = self.removals.iter().filter_map(measured).collect();
        let &(cheapest, change) = changes.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        let useless = self.useless();
        if useless.is_empty() {
            let percent = percent(change.exp_m1());
            return Some(format!(
                "Every block is needed: without block {cheapest}, the cheapest, perplexity rises by {percent}"
            ));
        }
        let limit = percent(USELESS.exp_m1());
        let (count, which) = (useless.len(), listed(&useless));
        Some(match count {
            1 => format!(
                "1 of {} blocks hardly matters: without block {which} perplexity rises by less than {limit}",
                self.blocks
            ),
            _ => format!(
                "{count} of {} blocks hardly matter: perplexity rises by less than {limit} without any one of {which}",
                self.blocks
            ),
        })
    }

    fn of_turns(&self) -> Option<Finding> {
        let turns = self.block_turns.iter().enumerate();
        let turns: Vec<(usize, f64)> = turns.filter_map(|(i, turn)| Some((i, (*turn)?))).collect();
        let &(least, angle) = turns.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        let hardly: Vec<usize> =
            turns.iter().filter(|(_, turn)| *turn < HARDLY).map(|(block, _)| *block).collect();
        Some(match hardly.len() {
            0 => Finding::calm(format!(
                "Every block turns what the next one reads by {angle:.0} degrees or more; block {least} does least"
            )),
            1 => Finding::striking(format!(
                "Block {} turns what the next one reads by less than {HARDLY} degrees",
                hardly[0]
            )),
            count => Finding::striking(format!(
                "{count} of {} blocks turn what the next one reads by less than {HARDLY} degrees: {}",
                self.blocks,
                listed(&hardly)
            )),
        })
    }

    fn of_the_dearest(&self) -> Option<Finding> {
        let (block, change) = self.dearest()?;
        let mut changes: Vec<f64> = self.removals.iter().filter_map(|r| r.loss_change).collect();
        changes.sort_by(f64::total_cmp);
        let middle = changes[changes.len() / 2];
        let words =
            format!("Block {block} is missed most: without it the loss rises by {change:.2} nats");
        Some(match middle > 0.0 && change >= CARRIES * middle {
            true => Finding::striking(format!(
                "{words}, {:.0} times as much as for the median block",
                change / middle
            )),
            false => Finding::calm(words),
        })
    }

    fn of_gradients(&self) -> Option<Finding> {
        let ratio = self.gradient_ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0)?;
        Some(if ratio >= UNEVEN {
            Finding::striking(format!(
                "The first block's gradient is {ratio:.0} times the last one's: late blocks learn from a weak signal"
            ))
        } else if ratio <= 1.0 / UNEVEN {
            Finding::striking(format!(
                "The last block's gradient is {:.0} times the first one's: early blocks learn from a weak signal",
                1.0 / ratio
            ))
        } else {
            Finding::calm(format!(
                "Gradients reach all blocks: the first one's is {ratio:.1} times the last one's"
            ))
        })
    }

    fn of_activations(&self) -> Option<Finding> {
        let largest = self.largest.as_ref().filter(|largest| largest.times_median >= MASSIVE)?;
        Some(Finding::striking(format!(
            "Channel {} holds a value {:.0} times the median (behind {}): a massive activation, which low precision \
             suffers from",
            largest.channel, largest.times_median, largest.behind
        )))
    }

    fn of_the_sink(&self) -> Option<Finding> {
        let (block, share) = self.sink.filter(|(_, share)| *share >= SINK)?;
        Some(Finding::striking(format!(
            "The first token gets {} of the attention in block {block}: heads look there when they have nothing to say",
            percent(share)
        )))
    }

    /// What surgery, rescue, token collapse and connectivity say.
    fn of_streams(&self) -> [Option<Finding>; 4] {
        let finding = |(words, strikes): (String, bool)| Finding { words, strikes };
        // That mixers near the identity can be the identity is no surprise.
        let mixes = self.streams.and_then(|streams| streams.from_identity);
        let mixes = mixes.is_none_or(|distance| distance > MIXES);
        let surgery = self.surgery.as_ref().and_then(|found| found.sentence());
        [
            surgery.map(|(words, strikes)| (words, strikes && mixes)).map(finding),
            self.rescue.as_ref().and_then(|found| found.sentence()).map(finding),
            self.collapse.as_ref().map(|found| found.sentence()).map(finding),
            self.connectivity.as_ref().and_then(|found| found.sentence()).map(Finding::calm),
        ]
    }

    /// What causal and permutation scores, affine stand-ins and the course of training say.
    fn of_blocks(&self) -> [Option<Finding>; 4] {
        [
            self.causal.as_ref().and_then(|found| found.sentence()).map(Finding::calm),
            self.permutation.as_ref().and_then(|found| found.sentence()).map(Finding::calm),
            self.usefulness.as_ref().map(|found| Finding::calm(found.sentence())),
            // With small batches chance alone makes jumps: they say something beside those of other runs.
            self.spikes.as_ref().map(|spikes| Finding::calm(spikes.sentence())),
        ]
    }

    fn of_skips(&self) -> Option<Finding> {
        let skips = self.skips.as_ref()?;
        let share = percent(skips.flops);
        Some(Finding::striking(format!("Tokens skip {share} of the FLOPs that can be skipped")))
    }
}

/// A sentence without its full stop.
#[derive(Clone)]
struct Finding {
    words: String,
    /// Whether it is out of the ordinary.
    strikes: bool,
}

impl Finding {
    fn striking(words: String) -> Self {
        Self { words, strikes: true }
    }

    fn calm(words: String) -> Self {
        Self { words, strikes: false }
    }
}

/// Two digits, or all before the point.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent.abs() {
        size if size < 0.95 => format!("{percent:.1} %"),
        size if size < 9.5 && (size - size.round()).abs() > 0.05 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// `3, 5 to 9 and 12` of ascending numbers.
fn listed(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let words: Vec<String> = parts
        .into_iter()
        .flat_map(|(first, last)| match last - first {
            0 => vec![first.to_string()],
            1 => vec![first.to_string(), last.to_string()],
            _ => vec![format!("{first} to {last}")],
        })
        .collect();
    crate::words::listed(&words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::Largest;

    fn summary(changes: &[f64]) -> Summary {
        let removal = |(block, change): (usize, &f64)| Removal {
            block,
            loss_change: Some(*change),
            reason: None,
        };
        Summary {
            blocks: changes.len(),
            removals: changes.iter().enumerate().map(removal).collect(),
            ..Summary::default()
        }
    }

    #[test]
    fn numbers_are_listed_as_people_say_them() {
        for (numbers, words) in [
            (vec![], ""),
            (vec![3], "3"),
            (vec![3, 4], "3 and 4"),
            (vec![3, 5, 6, 7, 9], "3, 5 to 7 and 9"),
            (vec![0, 1, 2], "0 to 2"),
        ] {
            assert_eq!(listed(&numbers), words);
        }
        for (share, words) in
            [(0.0001, "0.0 %"), (0.0101, "1 %"), (0.0725, "7.2 %"), (0.5, "50 %"), (12.0, "1200 %")]
        {
            assert_eq!(percent(share), words);
        }
    }

    #[test]
    fn blocks_that_hardly_matter_make_the_headline() {
        let found = summary(&[1.0, 0.0099, -0.2, 0.005, 0.4]).verdict();
        assert_eq!(
            found.headline,
            "3 of 5 blocks hardly matter: perplexity rises by less than 1 % without any one of 1 to 3"
        );
        let one = summary(&[1.0, 0.0, 0.4]).verdict().headline;
        assert!(one.starts_with("1 of 3 blocks hardly matters: without block 1"), "{one}");
        let none = summary(&[1.0, 0.07, 0.4]).verdict().headline;
        assert!(
            none.contains("without block 1, the cheapest, perplexity rises by 7.3 %"),
            "{none}"
        );
    }

    #[test]
    fn what_stands_out_comes_before_what_is_as_it_should_be() {
        let calm = Summary {
            gradient_ratio: Some(UNEVEN - 0.1),
            block_turns: vec![Some(30.0), Some(HARDLY)],
            ..summary(&[1.0, 0.5])
        };
        let sentences = calm.verdict().sentences;
        assert!(sentences[0].starts_with("Every block turns what the next one reads by 5 degrees"));
        assert!(sentences[1].starts_with("Block 0 is missed most"), "{sentences:?}");
        assert_eq!(sentences.len(), EVIDENCE);

        let largest = Largest {
            value: 2e4,
            times_median: MASSIVE,
            behind: "11 mlp".into(),
            position: 0,
            channel: 507,
        };
        let sick = Summary {
            largest: Some(largest),
            sink: Some((3, SINK)),
            gradient_ratio: Some(1.0 / UNEVEN),
            ..calm.clone()
        };
        let sentences = sick.verdict().sentences;
        assert!(sentences[0].contains("early blocks learn from a weak signal"), "{sentences:?}");
        assert!(sentences[1].contains("Channel 507 holds a value 1000 times"), "{sentences:?}");
        let late = Summary { gradient_ratio: Some(UNEVEN), ..calm.clone() };
        assert!(late.verdict().sentences[0].contains("late blocks learn"));
        let turns = Summary { block_turns: vec![Some(HARDLY - 0.1); 2], ..calm.clone() };
        assert!(turns.verdict().sentences[0].starts_with("2 of 2 blocks turn"));
        let sink = Summary { sink: Some((3, SINK)), ..calm };
        assert!(sink.verdict().sentences[0].contains("30 % of the attention in block 3"));
    }

    #[test]
    fn a_block_carries_the_model_if_it_is_missed_ten_times_as_much() {
        let sentence = |most: f64| summary(&[most, 0.5, 0.4]).verdict().sentences[0].clone();
        assert!(sentence(CARRIES * 0.5).contains("10 times as much as for the median block"));
        assert!(!sentence(CARRIES * 0.5 - 0.1).contains("times as much"));
    }

    #[test]
    fn a_few_numbers_are_enough_for_a_sentence() {
        let alone = Summary { blocks: 6, loss: 0.5, perplexity: 1.65, ..Summary::default() };
        assert!(alone.verdict().headline.starts_with("6 blocks with a loss of 0.500"));
        let turns = Summary { block_turns: vec![Some(2.0), None, Some(9.0)], ..alone };
        assert_eq!(turns.verdict().all().len(), 1);
        assert!(turns.verdict().headline.starts_with("Block 0 turns what"));
        // Blocks that cannot be left out say nothing.
        let refused = Removal { block: 0, loss_change: None, reason: Some("it fills".into()) };
        let refused = Summary { removals: vec![refused], blocks: 1, ..Summary::default() };
        assert!(refused.verdict().headline.starts_with("1 blocks with a loss"));
    }
}
