//! What made a run: its data, the program and the way it computed. Numbers of different data do not belong into one
//! table, and those of different programs only with a word about it.

use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::Path;

/// What made a run, `run.json`. What an older version did not write is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Version of hadal.
    #[serde(rename = "hadal")]
    pub version: Option<String>,
    /// The commit that hadal was built from.
    pub commit: Option<String>,
    /// The beginning of the executable's blake3: two builds of one commit may differ.
    pub executable: Option<String>,
    /// blake3 of the data's identity, whatever its order.
    pub data: Option<String>,
    /// Version of the task generator, if the data is generated.
    pub task_generator: Option<u32>,
    /// `avx512`, `avx2`, `portable`, or `plain` for tensor operations alone; `avx512 with amx` if that multiplied rounded operands.
    pub simd: Option<String>,
    /// What the CPU calls itself. Another one with the same form computes the same.
    pub cpu: Option<String>,
    /// Threads that computed. (`threads` was something else in older versions.)
    #[serde(rename = "computing_threads")]
    pub threads: Option<usize>,
    /// The tensor library.
    pub backend: Option<String>,
    /// Where the model was, if not on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Why a repetition there need not have the same bits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inexact: Vec<String>,
    /// The operating system.
    pub os: Option<String>,
    /// The kind of processor.
    pub architecture: Option<String>,
    /// Those that went on with it and were not the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resumed_by: Vec<Provenance>,
}

/// Why runs are not shown in one table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Apart(String);

impl Provenance {
    /// Its file in a run's folder.
    pub const FILE: &str = "run.json";

    /// What a run's folder says; unknown if it says nothing that can be read.
    pub fn read(run: &Path) -> Self {
        crate::run::small_json(&run.join(Self::FILE)).ok().flatten().unwrap_or_default()
    }

    /// The program: `hadal 0.1.0, commit 05b66661, executable 1a2b3c4d`.
    pub fn build(&self) -> String {
        let or_unknown = |part: &Option<String>| part.as_deref().map_or("unknown".into(), short);
        let [version, commit, executable] =
            [&self.version, &self.commit, &self.executable].map(or_unknown);
        format!("hadal {version}, commit {commit}, executable {executable}")
    }

    /// This one and those that went on with it.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.resumed_by)
    }

    /// Every program that worked on it.
    fn builds(&self) -> String {
        let mut builds: Vec<String> = self.all().map(Self::build).collect();
        builds.dedup();
        builds.join(", then ")
    }

    /// Where the model was. Older versions knew the CPU alone.
    fn place(&self) -> String {
        self.device.as_deref().map_or_else(|| "CPU".into(), short)
    }

    fn parts(&self) -> [(&'static str, Option<String>); 7] {
        [
            ("data", self.data.as_deref().map(short)),
            ("hadal", self.version.as_deref().map(short)),
            ("commit", self.commit.as_deref().map(short)),
            ("executable", self.executable.as_deref().map(short)),
            ("device", Some(self.place())),
            ("SIMD form", self.simd.as_deref().map(|simd| visible(simd, FORM))),
            ("threads", self.threads.map(|threads| threads.to_string())),
        ]
    }
}

/// Where two differ: `SIMD form: avx2 then, portable now`.
pub fn differences(recorded: &Provenance, now: &Provenance) -> Vec<String> {
    // Text does not depend on the generator, and older versions named it nevertheless.
    let generator = match (recorded.task_generator, now.task_generator) {
        (Some(then), Some(now)) if then != now => {
            Some(format!("task generator: {then} then, {now} now"))
        }
        _ => None,
    };
    let parts = recorded.parts().into_iter().zip(now.parts());
    let differ = parts.filter(|((_, then), (_, now))| then != now);
    let known = |part: Option<String>| part.unwrap_or_else(|| "unknown".into());
    let words = differ.map(|((name, then), (_, now))| {
        format!("{name}: {} then, {} now", known(then), known(now))
    });
    generator.into_iter().chain(words).collect()
}

/// Whether runs can stand in one table. If so, notes on what may make a difference besides their settings.
pub fn together(runs: &[(&str, &Provenance)]) -> Result<Vec<String>, Apart> {
    let remedy = "report on them separately";
    let generators = groups(runs, |made| made.task_generator);
    let data = groups(runs, |made| made.data.clone());
    if generators.len() > 1 {
        let words = listed(&generators, |version| format!("generator {version}"));
        return Err(Apart(format!(
            "these runs come from different task generators and cannot be compared: {words}; {remedy}"
        )));
    }
    if data.len() > 1 {
        let words = listed(&data, |data| format!("data {}", short(data)));
        return Err(Apart(format!(
            "these runs were not trained on the same data and cannot be compared: {words}; {remedy}"
        )));
    }
    let mut notes = Vec::new();
    if runs.len() < 2 {
        return Ok(notes);
    }
    let silent: Vec<&str> =
        runs.iter().filter(|(_, made)| made.data.is_none()).map(|(name, _)| *name).collect();
    match silent.len() {
        0 => {}
        1 => notes.push(format!("{} does not say which data it was trained on.", silent[0])),
        _ => notes.push(format!("{} do not say which data they were trained on.", names(&silent))),
    }
    let builds = groups(runs, |made| Some(made.builds()));
    if builds.len() > 1 {
        let words = listed(&builds, |build| format!("by {build}"));
        notes.push(format!("These runs were made by different builds: {words}."));
    }
    let places = groups(runs, |made| Some(made.place()));
    if places.len() > 1 {
        let words = listed(&places, Clone::clone);
        notes.push(format!("These runs were trained on different devices: {words}."));
    }
    let forms = groups(runs, |made| made.simd.clone());
    if forms.len() > 1 {
        let words = listed(&forms, |form| short(form));
        notes.push(format!("These runs were trained in different SIMD forms: {words}."));
    }
    let threads = groups(runs, |made| made.threads);
    if threads.len() > 1 {
        let words = listed(&threads, |threads| format!("threads {threads}"));
        notes.push(format!("These runs were trained on different numbers of threads: {words}."));
    }
    Ok(notes)
}

/// Names of runs by a value, where it is known.
fn groups<'a, T: PartialEq>(
    runs: &[(&'a str, &Provenance)],
    value: impl Fn(&Provenance) -> Option<T>,
) -> Vec<(T, Vec<&'a str>)> {
    let mut groups: Vec<(T, Vec<&str>)> = Vec::new();
    for (name, made) in runs {
        let Some(value) = value(made) else { continue };
        match groups.iter_mut().find(|(other, _)| *other == value) {
            Some((_, names)) => names.push(name),
            None => groups.push((value, vec![name])),
        }
    }
    groups
}

fn listed<T>(groups: &[(T, Vec<&str>)], words: impl Fn(&T) -> String) -> String {
    let parts: Vec<String> =
        groups.iter().map(|(value, runs)| format!("{} ({})", names(runs), words(value))).collect();
    parts.join("; ")
}

/// The first few names.
pub fn names(names: &[impl Display]) -> String {
    const ENOUGH: usize = 6;
    let shown: Vec<String> = names.iter().take(ENOUGH).map(ToString::to_string).collect();
    match names.len().saturating_sub(ENOUGH) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The beginning of a hash, or of whatever stands in its place in somebody's file.
pub fn short(hash: &str) -> String {
    const ENOUGH: usize = 12;
    visible(hash, ENOUGH)
}

/// Letters that a SIMD form can have.
const FORM: usize = 30;

/// The beginning of a text of a file, without what a terminal would take for a command.
fn visible(text: &str, enough: usize) -> String {
    text.chars().take(enough).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(data: &str, executable: &str) -> Provenance {
        Provenance {
            version: Some("0.1.0".into()),
            commit: Some("05b6666".into()),
            executable: Some(executable.into()),
            data: Some(data.into()),
            simd: Some("avx2".into()),
            threads: Some(1),
            ..Provenance::default()
        }
    }

    #[test]
    fn differences_are_said_in_words_and_nothing_known_is_unknown() {
        let now = made("d", "e");
        assert!(differences(&now, &now).is_empty());
        let then = Provenance { simd: Some("portable".into()), threads: Some(2), ..now.clone() };
        let expected = ["SIMD form: portable then, avx2 now", "threads: 2 then, 1 now"];
        assert_eq!(differences(&then, &now), expected);
        let old: Provenance = serde_json::from_str(
            "{\"hadal\": \"0.1.0\", \"task_generator\": 1, \"threads\": 8, \"x\": 1}",
        )
        .unwrap();
        let said = differences(&old, &now);
        assert_eq!(said[0], "data: unknown then, d now");
        assert_eq!(said.len(), 5, "{said:?}");
        let (one, two) = (
            Provenance { task_generator: Some(1), ..now.clone() },
            Provenance { task_generator: Some(2), ..now },
        );
        assert_eq!(differences(&one, &two), ["task generator: 1 then, 2 now"]);
    }

    #[test]
    fn other_data_is_refused_and_other_builds_are_named() {
        let (a, b, c) = (made("d", "e"), made("d", "f"), made("other", "e"));
        assert_eq!(together(&[("a", &a), ("b", &a)]), Ok(Vec::new()));
        let notes = together(&[("a", &a), ("b", &b)]).unwrap();
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("b (by hadal 0.1.0, commit 05b6666, executable f)"), "{notes:?}");
        let said = together(&[("a", &a), ("b", &b), ("c", &c)]).unwrap_err().to_string();
        assert!(said.contains("a, b (data d); c (data other)"), "{said}");
        let old = Provenance::default();
        let notes = together(&[("a", &a), ("old", &old)]).unwrap();
        assert_eq!(notes[0], "old does not say which data it was trained on.");
        let elsewhere = Provenance { device: Some("wgpu".into()), ..a.clone() };
        let notes = together(&[("a", &a), ("b", &elsewhere)]).unwrap();
        let said = "These runs were trained on different devices: a (CPU); b (wgpu).";
        assert_eq!(notes, [said]);
        assert_eq!(differences(&elsewhere, &a), ["device: wgpu then, CPU now"]);
        let portable = Provenance { simd: Some("portable".into()), ..a.clone() };
        let notes = together(&[("a", &a), ("b", &portable)]).unwrap();
        assert!(notes[0].contains("b (portable)"), "{notes:?}");
        let went_on = Provenance { resumed_by: vec![b.clone()], ..a.clone() };
        let notes = together(&[("a", &a), ("b", &went_on)]).unwrap();
        assert!(notes[0].contains(", then hadal 0.1.0, commit 05b6666, executable f"), "{notes:?}");
    }

    #[test]
    fn other_generators_are_refused_by_their_versions() {
        let task =
            |generator, data| Provenance { task_generator: Some(generator), ..made(data, "e") };
        let (one, two) = (task(1, "d1"), task(2, "d2"));
        let said = together(&[("a", &one), ("b", &two)]).unwrap_err().to_string();
        assert!(said.contains("a (generator 1); b (generator 2)"), "{said}");
    }

    #[test]
    fn a_file_cannot_write_to_the_terminal() {
        let hostile = Provenance { version: Some("\u{1b}]0;x".into()), ..Provenance::default() };
        assert!(!hostile.build().contains('\u{1b}'));
    }
}
