//! Several files as one input: each begins with a line `>>> NAME`.

use std::fs;
use std::path::Path;

const MARK: &[u8] = b">>> ";

/// The files of an input. What is before the first mark is left out.
pub(crate) fn split(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let mut rest = match bytes.strip_prefix(MARK) {
        Some(rest) => rest,
        None => return files,
    };
    loop {
        let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let name = String::from_utf8_lossy(&rest[..end]).into_owned();
        let content = rest.get(end + 1..).unwrap_or_default();
        match content.windows(5).position(|window| window == b"\n>>> ") {
            Some(at) => {
                files.push((name, content[..at].to_vec()));
                rest = &content[at + 5..];
            }
            None => {
                files.push((name, content.to_vec()));
                return files;
            }
        }
    }
}

/// The input of some files.
pub(crate) fn join(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, (name, content)) in files.iter().enumerate() {
        if i > 0 {
            bytes.push(b'\n');
        }
        bytes.extend(MARK);
        bytes.extend(name.as_bytes());
        bytes.push(b'\n');
        bytes.extend(content);
    }
    bytes
}

/// Writes files into a directory, those whose names are plain paths below it.
pub(crate) fn write(files: &[(String, Vec<u8>)], directory: &Path) {
    for (name, content) in files.iter().take(16) {
        let plain = |part: &str| {
            !part.is_empty()
                && part.len() < 100
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && part != "."
                && part != ".."
        };
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() > 3 || !parts.iter().all(|part| plain(part)) {
            continue;
        }
        let path = directory.join(name);
        if let Some(parent) = path.parent().filter(|_| parts.len() > 1) {
            let _ = fs::create_dir_all(parent);
        }
        let _ = fs::write(path, content);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_joined_is_split_again() {
        let files = [("a.json", "{}\n"), ("b/c.toml", ""), ("d", "x\n>> y")];
        let files = files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        assert_eq!(split(&join(&files)), files);
        assert_eq!(split(b"nothing"), []);
        assert_eq!(split(b">>> a"), [("a".to_owned(), Vec::new())]);
    }
}
