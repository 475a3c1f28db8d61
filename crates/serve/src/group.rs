//! Runs that belong together: seeds of one policy, and the suite or the folder that holds them.

use crate::catalogue::{Snapshot, Standing, Suite, Summary};
use hadal_report::comparison::at_depth;
use hadal_report::palette::{Look, named};
use hadal_report::statistics::summary;

/// Runs that differ in their seed alone.
pub(crate) struct Group<'a> {
    /// Names it in addresses: what its runs are called without their seeds.
    pub(crate) id: String,
    /// The same, without the section's prefix.
    pub(crate) label: String,
    /// Blocks, if the suite goes through several numbers of them.
    pub(crate) depth: Option<usize>,
    /// By name.
    pub(crate) runs: Vec<&'a Summary>,
    pub(crate) look: Look,
}

/// A suite, or the runs of a folder that belong to none.
pub(crate) struct Section<'a> {
    /// The suite's or the folder's name; empty for the folder that is served.
    pub(crate) id: &'a str,
    pub(crate) suite: Option<&'a Suite>,
    /// The names of its runs begin with this.
    pub(crate) prefix: &'a str,
    pub(crate) groups: Vec<Group<'a>>,
}

/// A run's name without its seed.
fn stem(run: &Summary) -> &str {
    let Some(seed) = run.seed else { return &run.id };
    let ends = [format!("-s{seed}"), format!("-{seed}")];
    ends.iter().find_map(|end| run.id.strip_suffix(end)).unwrap_or(&run.id)
}

/// All sections, the newest first. Policies of a suite are ordered by loss, other runs by time.
pub(crate) fn sections(now: &Snapshot) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for run in now.summaries() {
        let suite = now.suites.iter().filter(|(_, suite)| run.id.starts_with(&suite.prefix));
        let suite = suite.max_by_key(|(_, suite)| suite.prefix.len());
        let (id, prefix) = match suite {
            Some((id, suite)) => (id.as_str(), suite.prefix.as_str()),
            None => {
                let end = run.id.rfind('/').map_or(0, |end| end + 1);
                (run.id[..end].trim_end_matches('/'), &run.id[..end])
            }
        };
        let place = sections.iter().position(|section| section.prefix == prefix);
        let place = place.unwrap_or_else(|| {
            let suite = suite.map(|(_, suite)| suite);
            sections.push(Section { id, suite, prefix, groups: Vec::new() });
            sections.len() - 1
        });
        sections[place].add(run);
    }
    // A suite that has just been started has no runs yet.
    for (id, suite) in &now.suites {
        if sections.iter().all(|section| section.prefix != suite.prefix) {
            let (suite, prefix) = (Some(suite), suite.prefix.as_str());
            sections.push(Section { id, suite, prefix, groups: Vec::new() });
        }
    }
    for section in &mut sections {
        section.arrange();
    }
    sections.sort_by_key(|section| std::cmp::Reverse(section.changed()));
    sections
}

impl<'a> Section<'a> {
    fn add(&mut self, run: &'a Summary) {
        let stem = stem(run);
        let same = |group: &&mut Group<'a>| {
            let first = group.runs[0];
            self::stem(first) == stem && first.settings == run.settings
        };
        if let Some(group) = self.groups.iter_mut().find(same) {
            group.runs.push(run);
            return;
        }
        // Runs of other settings are no seeds of the same policy, whatever their names.
        let others = self.groups.iter().filter(|group| self::stem(group.runs[0]) == stem).count();
        let id = if others == 0 { stem.to_owned() } else { format!("{stem} ({})", others + 1) };
        let label = id.strip_prefix(self.prefix).unwrap_or(&id).to_owned();
        self.groups.push(Group { id, label, depth: None, runs: vec![run], look: Look::default() });
    }

    /// A suite that goes through depths calls its runs `nag-d6-s0`: these are nag at 6 blocks.
    fn name_depths(&mut self) {
        let found = |group: &Group<'_>| {
            let blocks = group.runs[0].blocks?;
            let policy = group.label.strip_suffix(&format!("-d{blocks}"))?.to_owned();
            Some((policy, usize::try_from(blocks).ok()?))
        };
        let all: Option<Vec<_>> = self.groups.iter().map(found).collect();
        let Some(all) = all.filter(|_| self.suite.is_some()) else { return };
        if all.iter().all(|(_, blocks)| *blocks == all[0].1) {
            return;
        }
        for (group, (policy, blocks)) in self.groups.iter_mut().zip(all) {
            group.label = at_depth(&policy, Some(blocks));
            group.depth = Some(blocks);
        }
    }

    fn arrange(&mut self) {
        self.name_depths();
        let looks = named(self.groups.iter().map(|group| (group.label.as_str(), group.kind())));
        for (group, (_, look)) in self.groups.iter_mut().zip(looks) {
            // Forms of a kind are told apart in a suite; single runs of a kind are just that.
            let variant = if self.suite.is_some() { look.variant } else { 0 };
            group.look = Look { variant, ..look };
        }
        if self.suite.is_some() {
            let loss = |group: &Group<'_>| {
                let mean = group
                    .mean(|run| run.held_out_loss)
                    .or_else(|| group.mean(|run| run.train_loss));
                mean.map_or(f64::INFINITY, |(mean, _)| mean)
            };
            self.groups.sort_by(|a, b| a.depth.cmp(&b.depth).then(loss(a).total_cmp(&loss(b))));
        } else {
            self.groups.sort_by_key(|group| std::cmp::Reverse(group.changed()));
        }
    }

    /// All its runs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &'a Summary> {
        self.groups.iter().flat_map(|group| group.runs.iter().copied())
    }

    /// When something was last written, in seconds since 1970.
    pub(crate) fn changed(&self) -> u64 {
        self.groups.iter().map(Group::changed).max().unwrap_or(0)
    }

    /// Depths that the suite goes through; 0 if it has one.
    pub(crate) fn depths(&self) -> usize {
        let mut depths: Vec<usize> = self.groups.iter().filter_map(|group| group.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        depths.len()
    }

    /// The most seeds of a policy.
    pub(crate) fn seeds(&self) -> usize {
        self.groups.iter().map(|group| group.runs.len()).max().unwrap_or(0)
    }

    /// Seconds until the last of its runs is done, as far as the finished ones tell.
    pub(crate) fn left(&self) -> Option<f64> {
        let under_way: Vec<f64> = self.runs().filter_map(Summary::left).collect();
        if under_way.is_empty() {
            return None;
        }
        let lengths: Vec<f64> = self.runs().filter_map(Summary::length).collect();
        let planned = self.suite.map_or(0, |suite| suite.planned);
        let missing = planned.saturating_sub(self.runs().count()) as f64;
        let work = under_way.iter().sum::<f64>() + missing * summary(&lengths).mean;
        Some(work / under_way.len() as f64)
    }
}

impl<'a> Group<'a> {
    /// The kind of residual stream.
    pub(crate) fn kind(&self) -> &'a str {
        self.runs[0].residual.as_str()
    }

    /// When something was last written, in seconds since 1970.
    pub(crate) fn changed(&self) -> u64 {
        self.runs.iter().map(|run| run.changed).max().unwrap_or(0)
    }

    /// Whether several seeds are summed up.
    pub(crate) fn is_many(&self) -> bool {
        self.runs.len() > 1
    }

    /// The runs that count: those that are done, or all as long as none is.
    pub(crate) fn counted(&self) -> Vec<&'a Summary> {
        let done = self.runs.iter().filter(|run| run.status == Standing::Done);
        let done: Vec<_> = done.copied().collect();
        if done.is_empty() { self.runs.clone() } else { done }
    }

    /// Mean and standard deviation over the runs that count.
    pub(crate) fn mean(
        &self,
        value: impl Fn(&Summary) -> Option<f64>,
    ) -> Option<(f64, Option<f64>)> {
        let values: Vec<f64> = self.counted().into_iter().filter_map(value).collect();
        let summary = summary(&values);
        (summary.n > 0).then_some((summary.mean, summary.sd))
    }

    /// The state that needs attention most, with the number of runs in it.
    pub(crate) fn standing(&self) -> (Standing, usize) {
        use Standing::{Broken, Done, Failed, Running, Stopped};
        let count = |standing| self.runs.iter().filter(|run| run.status == standing).count();
        let all =
            [Running, Failed, Broken, Stopped, Done].map(|standing| (standing, count(standing)));
        all.into_iter().find(|(_, count)| *count > 0).unwrap_or((Done, 0))
    }
}

/// Runs that a query names, one by one (`run=`) and by group (`group=`), in the order of the query.
pub(crate) struct Chosen {
    pub(crate) id: String,
    /// What a curve of its own is called.
    pub(crate) name: String,
    /// What the curve over all seeds is called.
    pub(crate) group: String,
    pub(crate) look: Look,
}

/// Expands a query. Runs that are not there are named as they are, so that this can be said.
pub(crate) fn chosen(now: &Snapshot, query: &[(String, String)]) -> Vec<Chosen> {
    let sections = sections(now);
    let mut found: Vec<(&str, Option<(&Section<'_>, &Group<'_>)>)> = Vec::new();
    for (key, id) in query {
        let groups = || sections.iter().flat_map(|s| s.groups.iter().map(move |g| (s, g)));
        let mut add = |id, of| {
            if found.iter().all(|(other, _)| *other != id) {
                found.push((id, of));
            }
        };
        if key == "run" {
            add(
                id.as_str(),
                groups().find(|(_, group)| group.runs.iter().any(|run| run.id == *id)),
            );
        } else if let Some((section, group)) = groups().find(|(_, g)| key == "group" && g.id == *id)
        {
            group.runs.iter().for_each(|run| add(run.id.as_str(), Some((section, group))));
        }
    }
    // Names are short as long as everything is of one section.
    let mut prefixes = found.iter().filter_map(|(_, of)| Some(of.as_ref()?.0.prefix));
    let first = prefixes.next().unwrap_or("");
    let common = if prefixes.all(|prefix| prefix == first) { first } else { "" };
    let short = |id: &str| id.strip_prefix(common).unwrap_or(id).replace("/runs/", "/");
    let mut groups: Vec<(&str, &str)> = Vec::new();
    for (id, of) in &found {
        let (group, kind) =
            of.map_or((*id, "unknown"), |(_, group)| (group.id.as_str(), group.kind()));
        if groups.iter().all(|(other, _)| *other != group) {
            groups.push((group, kind));
        }
    }
    let looks = named(groups);
    let look = |group: &str| {
        let known = looks.iter().find(|(other, _)| other == group);
        known.map(|(_, look)| *look).unwrap_or_default()
    };
    let make = |(id, of): (&str, Option<(&Section<'_>, &Group<'_>)>)| {
        let group = of.map_or(id, |(_, group)| group.id.as_str());
        let label = of.filter(|_| !common.is_empty()).map(|(_, group)| group.label.clone());
        let label = label.unwrap_or_else(|| short(group));
        Chosen { id: id.into(), name: short(id), group: label, look: look(group) }
    };
    found.into_iter().map(make).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Entry;
    use std::sync::Arc;

    fn run(id: &str, seed: i64, loss: f64, changed: u64) -> Summary {
        Summary {
            id: id.into(),
            seed: Some(seed),
            residual: "mgr".into(),
            held_out_loss: Some(loss),
            status: Standing::Done,
            changed,
            ..Summary::default()
        }
    }

    fn snapshot(runs: Vec<Summary>, suites: &[&str]) -> Snapshot {
        let mut now = Snapshot::default();
        for summary in runs {
            let entry = Entry { path: "".into(), revision: 0, summary };
            now.runs.insert(entry.summary.id.clone(), Arc::new(entry));
        }
        for id in suites {
            let suite = Suite { prefix: format!("{id}/runs/"), ..Suite::default() };
            now.suites.insert((*id).into(), suite);
        }
        now
    }

    #[test]
    fn seeds_of_a_policy_are_one_group_and_the_best_policy_of_a_suite_is_first() {
        let now = snapshot(
            vec![
                run("cmp/runs/b-s0", 0, 1.0, 5),
                run("cmp/runs/b-s1", 1, 3.0, 7),
                run("cmp/runs/a-s0", 0, 4.0, 9),
                run("alone-7", 7, 1.0, 20),
                run("x-1-1", 1, 1.0, 30),
            ],
            &["cmp", "new"],
        );
        let sections = sections(&now);
        let ids: Vec<&str> = sections.iter().map(|section| section.id).collect();
        assert_eq!(ids, ["", "cmp", "new"]);
        let labels: Vec<&str> = sections[1].groups.iter().map(|g| g.label.as_str()).collect();
        assert_eq!(labels, ["b", "a"]);
        let (mean, sd) = sections[1].groups[0].mean(|run| run.held_out_loss).unwrap();
        assert_eq!((mean, sd.map(|sd| sd.round())), (2.0, Some(1.0)));
        let labels: Vec<&str> = sections[0].groups.iter().map(|g| g.label.as_str()).collect();
        assert_eq!(labels, ["x-1", "alone"]);
    }

    #[test]
    fn policies_of_a_suite_that_goes_through_depths_stand_depth_by_depth() {
        let deep = |name: &str, blocks: i64, loss: f64| Summary {
            blocks: Some(blocks),
            ..run(&format!("cmp/runs/{name}-d{blocks}-s0"), 0, loss, 0)
        };
        let all =
            vec![deep("a", 10, 1.0), deep("b", 10, 0.5), deep("a", 2, 0.1), deep("b", 2, 0.2)];
        let now = snapshot(all, &["cmp"]);
        let sections = sections(&now);
        let labels: Vec<&str> = sections[0].groups.iter().map(|g| g.label.as_str()).collect();
        let right = ["a at 2 blocks", "b at 2 blocks", "b at 10 blocks", "a at 10 blocks"];
        assert_eq!((labels, sections[0].depths()), (right.to_vec(), 2));
        let one = snapshot(vec![deep("a", 2, 0.1), deep("b", 2, 0.2)], &["cmp"]);
        assert_eq!(self::sections(&one)[0].groups[0].label, "a-d2");
    }

    #[test]
    fn runs_of_other_settings_are_never_averaged() {
        let mut other = run("a-1", 1, 9.0, 0);
        other.settings = "other".into();
        let now = snapshot(vec![run("a-0", 0, 1.0, 0), other], &[]);
        let sections = sections(&now);
        let ids: Vec<&str> = sections[0].groups.iter().map(|group| group.id.as_str()).collect();
        assert_eq!(ids, ["a", "a (2)"]);
    }

    #[test]
    fn groups_in_a_query_stand_for_their_runs_and_names_are_short_within_a_suite() {
        let runs = vec![
            run("cmp/runs/b-s0", 0, 1.0, 5),
            run("cmp/runs/b-s1", 1, 3.0, 7),
            run("cmp/runs/a-s0", 0, 4.0, 9),
            run("alone", 0, 1.0, 20),
        ];
        let now = snapshot(runs, &["cmp"]);
        let ask = |pairs: &[(&str, &str)]| {
            let query: Vec<_> =
                pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let all = chosen(&now, &query).into_iter();
            all.map(|one| format!("{} {} {}", one.name, one.group, one.look.variant))
                .collect::<Vec<_>>()
        };
        let both =
            ask(&[("group", "cmp/runs/b"), ("run", "cmp/runs/a-s0"), ("run", "cmp/runs/b-s0")]);
        assert_eq!(both, ["b-s0 b 1", "b-s1 b 1", "a-s0 a 0"]);
        assert_eq!(ask(&[("run", "alone"), ("run", "none")]), ["alone alone 0", "none none 0"]);
        let far = ask(&[("run", "alone"), ("run", "cmp/runs/a-s0")]);
        assert_eq!(far, ["alone alone 0", "cmp/a-s0 cmp/a 1"]);
    }

    #[test]
    fn the_time_left_of_a_suite_counts_runs_that_have_not_begun() {
        let mut under_way = run("cmp/runs/a-s1", 1, 1.0, 0);
        (under_way.status, under_way.step, under_way.steps) = (Standing::Running, 50, Some(100));
        (under_way.tokens, under_way.tokens_per_second) = (500, Some(10.0));
        let mut done = run("cmp/runs/a-s0", 0, 1.0, 0);
        (done.step, done.steps) = (100, Some(100));
        (done.tokens, done.tokens_per_second) = (1000, Some(10.0));
        assert_eq!((under_way.left(), done.left()), (Some(50.0), None));
        let mut now = snapshot(vec![under_way, done], &["cmp"]);
        now.suites.get_mut("cmp").unwrap().planned = 4;
        assert_eq!(sections(&now)[0].left(), Some(250.0));
    }
}
