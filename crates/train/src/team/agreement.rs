//! What all ranks must have in common before the first step.

use super::exchange::Team;
use super::wire::{Letter, Reader};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::provenance::{self, simd};
use hadal_data::Feed;
use hadal_ranks::Member;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// What a rank works with. Threads are not in it: they change no bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    settings: String,
    data: String,
    build: String,
    form: String,
}

impl Agreement {
    /// Of this process.
    pub(crate) fn here(config: &RunConfig, feed: &Feed) -> Result<Self, TrainError> {
        let settings = toml::to_string(config).map_err(|e| TrainError::Settings(e.to_string()))?;
        Ok(Self {
            settings,
            data: feed.fingerprint()?,
            build: provenance::build(),
            form: simd(config.train.precision),
        })
    }

    fn write(&self, letter: &mut Letter, me: &Member) {
        letter.text(&me.host);
        letter.word(me.process.into());
        for text in [&self.settings, &self.data, &self.build, &self.form] {
            letter.text(text);
        }
    }

    fn read(reader: &mut Reader<'_>, rank: usize) -> Option<(Member, Self)> {
        let host = reader.text()?;
        let process = u32::try_from(reader.word()?).ok()?;
        let mut text = || reader.text();
        let said = Self { settings: text()?, data: text()?, build: text()?, form: text()? };
        Some((Member { rank, host, process }, said))
    }

    /// Introduces all ranks to each other, and refuses those that work with something else than rank 0.
    pub(crate) fn reach(&self, team: &mut Team) -> Result<(), TrainError> {
        if team.is_alone() {
            return Ok(());
        }
        let me = Member { rank: team.rank(), host: host(), process: std::process::id() };
        let letters = team.gather(|letter| self.write(letter, &me))?;
        let mut all = Vec::new();
        for (rank, letter) in letters.iter().enumerate() {
            all.push(team.read(rank, letter, |reader| Self::read(reader, rank))?);
        }
        let (members, said): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let strangers = members.iter().zip(&said).filter_map(|(member, other)| {
            let differ = said[0].differences(other);
            (!differ.is_empty()).then(|| format!("{member} has {}", differ.join(", ")))
        });
        let strangers: Vec<String> = strangers.collect();
        let first = members[0].clone();
        team.meet_members(members);
        match strangers.is_empty() {
            true => Ok(()),
            false => Err(TrainError::Strangers { first, strangers }),
        }
    }

    /// In what another one differs, in words.
    fn differences(&self, other: &Self) -> Vec<String> {
        let mut differ = changed(&self.settings, &other.settings);
        for (what, own, theirs) in [
            ("data", &self.data, &other.data),
            ("build", &self.build, &other.build),
            ("CPU form", &self.form, &other.form),
        ] {
            if own != theirs {
                differ.push(format!(
                    "another {what} ({} instead of {})",
                    short(theirs),
                    short(own)
                ));
            }
        }
        differ
    }
}

/// The beginning of a hash; words as they are.
fn short(text: &str) -> &str {
    const DIGITS: usize = 64;
    match text.len() >= DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => &text[..12],
        false => text,
    }
}

/// Settings that differ: `train.steps = 9 instead of 8`.
fn changed(own: &str, theirs: &str) -> Vec<String> {
    let [own, theirs] = [own, theirs].map(|text| {
        let mut lines = BTreeMap::new();
        flatten(&toml::from_str(text).unwrap_or_default(), "", &mut lines);
        lines
    });
    let keys: std::collections::BTreeSet<_> = own.keys().chain(theirs.keys()).collect();
    let said = |value: Option<&String>| value.map_or("nothing".to_owned(), Clone::clone);
    keys.into_iter()
        .map(|key| (key, own.get(key), theirs.get(key)))
        .filter(|(_, own, theirs)| own != theirs)
        .map(|(key, own, theirs)| format!("{key} = {} instead of {}", said(theirs), said(own)))
        .collect()
}

fn flatten(table: &Table, above: &str, lines: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        match value {
            Value::Table(table) => flatten(table, &format!("{above}{key}."), lines),
            value => drop(lines.insert(format!("{above}{key}"), value.to_string())),
        }
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("COMPUTERNAME").ok()).unwrap_or_default();
    match name.trim() {
        "" => "this machine".into(),
        name => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let one = Agreement {
            settings: "seed = 1\n[train]\nsteps = 8\n".into(),
            data: "d".repeat(64),
            build: "hadal 0.1.0".into(),
            form: "avx2".into(),
        };
        assert_eq!(one.differences(&one.clone()), [] as [String; 0]);
        let settings = "seed = 1\n[train]\nsteps = 9\ntokens = 3\n".into();
        let other =
            Agreement { settings, data: "e".repeat(64), form: "avx512".into(), ..one.clone() };
        assert_eq!(
            one.differences(&other),
            [
                "train.steps = 9 instead of 8",
                "train.tokens = 3 instead of nothing",
                "another data (eeeeeeeeeeee instead of dddddddddddd)",
                "another CPU form (avx512 instead of avx2)",
            ]
        );
    }
}
