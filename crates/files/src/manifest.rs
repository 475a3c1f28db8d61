//! `manifest.json`: the hashes of the files beside it, so that damage is noticed when they are read.

use super::verify::HashError;
use super::{Action, FileError, file_error, hash, is_part, pretty_json, read_at_most, write_whole};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The name of the file.
pub const MANIFEST: &str = "manifest.json";
/// A manifest names some ten thousand shards at most.
const LONGEST: u64 = 64 << 20;

/// blake3 by the name of a file.
pub type Hashes = BTreeMap<String, String>;

/// Writes the hashes of all files of a directory, `{"config.json": blake3, ..}`. To be called when everything else is
/// written and the directory does not have its name yet.
pub fn write_manifest(directory: &Path) -> Result<(), FileError> {
    write_manifest_with(directory, Hashes::new())
}

/// The same with hashes of files that will be there too.
pub fn write_manifest_with(directory: &Path, mut hashes: Hashes) -> Result<(), FileError> {
    let read = file_error(Action::Read, directory);
    for entry in fs::read_dir(directory).map_err(&read)? {
        let entry = entry.map_err(&read)?;
        if let Ok(name) = entry.file_name().into_string()
            && name != MANIFEST
            && !is_part(&name)
            && entry.path().is_file()
        {
            hashes.insert(name, hash(&entry.path())?.0);
        }
    }
    let path = directory.join(MANIFEST);
    write_whole(&path, pretty_json(&path, &hashes)? + "\n")
}

/// The hashes that a directory's manifest names, if there is one. Other programs use the name for files of their own,
/// so one that holds no hash says nothing.
pub fn read_manifest(directory: &Path) -> Result<Option<Hashes>, HashError> {
    let Some(json) = read(directory)? else { return Ok(None) };
    let Value::Object(entries) = json else { return Ok(None) };
    if !entries.values().any(|value| value.as_str().is_some_and(is_hash)) {
        return Ok(None);
    }
    let mut hashes = Hashes::new();
    for (name, value) in entries {
        match value.as_str() {
            Some(hash) if is_hash(hash) && is_plain(&name) => hashes.insert(name, hash.into()),
            _ => {
                let reason = format!("it has {value} for {name:?}, which is no hash of a file");
                return Err(HashError::Manifest { path: directory.join(MANIFEST), reason });
            }
        };
    }
    Ok(Some(hashes))
}

/// The same for manifests of any form of ours: also those of prepared data, which have records with `file` and `blake3`.
pub fn read_any_manifest(directory: &Path) -> Result<Option<Hashes>, HashError> {
    if let Some(hashes) = read_manifest(directory)? {
        return Ok(Some(hashes));
    }
    let mut hashes = Hashes::new();
    if let Some(json) = read(directory)? {
        collect(&json, &mut hashes);
    }
    Ok((!hashes.is_empty()).then_some(hashes))
}

fn read(directory: &Path) -> Result<Option<Value>, HashError> {
    let path = directory.join(MANIFEST);
    let text = match read_at_most(&path, LONGEST) {
        Ok(text) => text,
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let json = serde_json::from_slice(&text);
    json.map(Some).map_err(|error| HashError::Manifest { path, reason: error.to_string() })
}

fn collect(json: &Value, hashes: &mut Hashes) {
    match json {
        Value::Object(entries) => {
            let text = |key: &str| entries.get(key).and_then(Value::as_str);
            if let (Some(file), Some(hash)) = (text("file"), text("blake3"))
                && is_plain(file)
            {
                hashes.insert(file.into(), hash.into());
            }
            entries.values().for_each(|value| collect(value, hashes));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, hashes)),
        _ => {}
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a name is that of a file beside the manifest.
fn is_plain(name: &str) -> bool {
    Path::new(name).file_name() == Some(name.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_names_every_file_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        assert!(read_manifest(place).unwrap().is_none());
        fs::write(place.join("a"), "one").unwrap();
        fs::write(place.join("b.part"), "half").unwrap();
        fs::create_dir(place.join("c")).unwrap();
        write_manifest(place).unwrap();
        let hashes = read_manifest(place).unwrap().unwrap();
        assert_eq!(hashes.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(hashes["a"], hash(&place.join("a")).unwrap().0);
        // A second one does not hash the first.
        write_manifest(place).unwrap();
        assert_eq!(read_manifest(place).unwrap().unwrap(), hashes);
    }

    #[test]
    fn a_damaged_manifest_is_refused_and_another_programs_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let written = |text: &str| {
            fs::write(directory.path().join(MANIFEST), text).unwrap();
            read_manifest(directory.path())
        };
        let hash = "0123456789abcdef".repeat(4);
        for foreign in ["[]", "{}", r#"{"name": "app", "version": 3}"#] {
            assert!(written(foreign).unwrap().is_none(), "{foreign}");
        }
        for damaged in [
            "{".to_owned(),
            format!(r#"{{"a": "{hash}", "b": "{}g"}}"#, &hash[1..]),
            format!(r#"{{"a": "{hash}", "../b": "{hash}"}}"#),
            format!(r#"{{"a": "{hash}", "b": 3}}"#),
        ] {
            let error = written(&damaged).unwrap_err().to_string();
            assert!(error.contains("manifest.json is damaged"), "{error}");
        }
    }

    #[test]
    fn records_of_prepared_data_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let text = r#"{"tokenizer": {"kind": "bytes", "blake3": "bytes"},
            "shards": [{"file": "s-0.bin", "blake3": "12"}, {"file": "../x", "blake3": "34"}]}"#;
        fs::write(directory.path().join(MANIFEST), text).unwrap();
        assert!(read_manifest(directory.path()).unwrap().is_none());
        let hashes = read_any_manifest(directory.path()).unwrap().unwrap();
        assert_eq!(hashes, Hashes::from([("s-0.bin".into(), "12".into())]));
    }
}
