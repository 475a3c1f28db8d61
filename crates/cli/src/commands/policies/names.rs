//! The parameters of a policy by their names in a checkpoint, sites and blocks in braces.

use hadal_model::Device;
use hadal_residual::{Declared, Dimensions, ResidualConfig, Weights};

/// A width whose multiples are easy to see.
const WIDTH: usize = 10;
/// The fewest blocks that are shown.
const BLOCKS: usize = 4;

/// What the policy declares in a small model.
pub(super) struct Names {
    /// The model.
    pub(super) dimensions: Dimensions,
    /// Every parameter.
    pub(super) declared: Vec<Declared>,
}

/// Parameters whose names differ in one number, or in `out` in its place.
#[derive(Debug, PartialEq)]
struct Group {
    before: String,
    places: Vec<String>,
    after: String,
    shapes: Vec<Vec<usize>>,
}

impl Names {
    /// The policy's parameters in a model that is deep enough to have all of them: one of twice the depth has no
    /// others. `None` if no model of at most `most` blocks can have these settings.
    pub(super) fn of(policy: &ResidualConfig, most: usize) -> Option<Self> {
        let depths = std::iter::successors(Some(BLOCKS), |blocks| Some(2 * blocks));
        let mut models = depths
            .take_while(|&blocks| blocks <= most)
            .map(|blocks| Dimensions::new(WIDTH, blocks, 1e-6))
            .filter(|model| policy.check(model).is_ok() && policy.check_start(model).is_ok())
            .map(|dimensions| {
                let mut weights = Weights::fresh(0, &Device::flex());
                policy.init(&dimensions, &mut weights);
                Self { dimensions, declared: weights.declared() }
            });
        let mut shown = models.next()?;
        for deeper in models {
            if deeper.groups().len() == shown.groups().len() {
                break;
            }
            shown = deeper;
        }
        Some(shown)
    }

    /// One line for each group: names and shape.
    pub(super) fn lines(&self) -> Vec<String> {
        let groups = self.groups();
        let names: Vec<String> = groups.iter().map(Group::name).collect();
        let width = names.iter().map(String::len).max().unwrap_or_default();
        let line = |(name, group): (&String, &Group)| format!("{name:<width$}  {}", group.shape());
        names.iter().zip(&groups).map(line).collect()
    }

    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for Declared { name, shape, .. } in &self.declared {
            let words: Vec<&str> = name.split('.').collect();
            let at = words.iter().position(|word| *word == "out" || word.parse::<usize>().is_ok());
            let at = at.unwrap_or(words.len());
            let before = words[..at].join(".");
            let after = words.get(at + 1..).unwrap_or_default().join(".");
            let place = words.get(at).map(|place| (*place).to_owned());
            match groups.iter_mut().find(|group| group.before == before && group.after == after) {
                Some(group) => {
                    group.places.extend(place);
                    group.shapes.push(shape.clone());
                }
                None => {
                    let (places, shapes) = (Vec::from_iter(place), vec![shape.clone()]);
                    groups.push(Group { before, places, after, shapes });
                }
            }
        }
        groups
    }
}

impl Group {
    /// `residual.{1..7,out}.pool.weight`
    fn name(&self) -> String {
        let Self { before, places, after, .. } = self;
        let mut ranges: Vec<(String, String)> = Vec::new();
        for place in places {
            let number = place.parse::<usize>().ok();
            match ranges.last_mut() {
                Some((_, last))
                    if number.is_some_and(|n| n > 0 && *last == (n - 1).to_string()) =>
                {
                    last.clone_from(place);
                }
                _ => ranges.push((place.clone(), place.clone())),
            }
        }
        let ranges: Vec<String> = ranges
            .into_iter()
            .map(|(first, last)| if first == last { first } else { format!("{first}..{last}") })
            .collect();
        match ranges.join(",") {
            none if none.is_empty() => before.clone(),
            places => format!("{before}.{{{places}}}.{after}"),
        }
    }

    /// `[10]`, or the first and the last where they differ.
    fn shape(&self) -> String {
        match (self.shapes.first(), self.shapes.last()) {
            (Some(first), Some(last)) if first != last => format!("{first:?} to {last:?}"),
            (first, _) => format!("{:?}", first.cloned().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(policy: &str) -> String {
        Names::of(&policy.parse().unwrap(), 1024).unwrap().lines().join("\n")
    }

    #[test]
    fn sites_and_shapes_are_told_in_one_line() {
        let text = lines("mgr");
        for line in [
            "layers.{0..3}.attn_norm.weight",
            "residual.{1..7,out}.pool.weight",
            "residual.{3..7}.gate.bias        [5]",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(lines("denseformer").contains("residual.block.{1..4}.weights   [2] to [5]"));
        let nag = lines("nag");
        assert!(nag.contains("residual.log_gain") && !nag.contains("norm.weight"), "{nag}");
        let final_norm = |policy: &str| lines(policy).lines().any(|l| l.starts_with("norm.weight"));
        assert!(final_norm("prenorm") && !final_norm("postnorm"));
    }

    #[test]
    fn every_policy_names_each_of_its_parameters_once() {
        for policy in ResidualConfig::all() {
            let names = Names::of(&policy, 1024).unwrap();
            let told: usize = names.groups().iter().map(|group| group.shapes.len()).sum();
            assert_eq!(told, names.declared.len(), "{policy}");
            for Group { before, places, after, .. } in names.groups() {
                for place in places {
                    let name = format!("{before}.{place}.{after}");
                    assert!(names.declared.iter().any(|d| d.name == name), "{policy}: {name}");
                }
            }
        }
    }

    #[test]
    fn settings_that_need_depth_get_it() {
        let blocks = |policy: &str, most| {
            let names = Names::of(&policy.parse().unwrap(), most)?;
            Some(names.dimensions.blocks)
        };
        assert_eq!(blocks("mgr", 1024), Some(BLOCKS));
        // One gate of eight streams has no initial value.
        assert_eq!(blocks("mgr:streams=8", BLOCKS), None);
        assert_eq!(blocks("mgr:streams=8", 1024), Some(2 * BLOCKS));
        // Four blocks would all fill streams, and none would have a gate.
        assert!(lines("mgr:streams=16").contains("gate.weight"));
    }
}
