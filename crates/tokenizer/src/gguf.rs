//! The tokenizer of a GGUF file as a Hugging Face `tokenizer.json`.
//!
//! `gpt2` vocabularies are byte-level BPE with merges, cut into words by a named rule first. `llama` vocabularies are
//! SentencePiece's: every piece has a score, and the pair whose piece scores highest is merged first.

use hadal_gguf::{FromValue, Gguf, GgufError};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// What is wrong with a file, and a remedy.
type Reason = String;

/// SentencePiece's symbol for a space.
const SPACE: &str = "\u{2581}";
/// No tokenizer has pieces this long (Llama's have 48 bytes at most); a piece of n characters may have n - 1 merges.
const LONGEST_PIECE: usize = 128;
/// No tokenizer has this many merges for each of its tokens (Llama has 2), nor as much text in them for each byte of
/// its tokens. So memory is bounded by the file.
const MERGES_PER_TOKEN: usize = 8;
/// This many merges are few, however small the vocabulary.
const FEW_MERGES: usize = 4096;

/// `tokenizer.ggml.token_type` as far as it matters; 2 is the unknown token and 6 a byte.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const KINDS: RangeInclusive<i32> = 1..=6;

/// How GPT-2 cuts text into words.
pub const GPT2_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A rule that `tokenizer.ggml.pre` names.
pub struct Rule {
    /// The name.
    pub name: &'static str,
    /// What a word is.
    pub pattern: &'static str,
    /// Whether digits are split off before the pattern is tried.
    pub digits: bool,
    /// Whether a word that is itself a token is not merged.
    ignore_merges: bool,
    /// Whether a text begins with the begin token if the file does not say.
    begins: bool,
    /// Whether characters are composed first.
    composes: bool,
}

/// All that are known.
pub const RULES: [Rule; 5] = [
    Rule {
        name: "gpt-2",
        pattern: GPT2_PATTERN,
        digits: false,
        ignore_merges: false,
        begins: false,
        composes: false,
    },
    Rule {
        name: "smollm",
        pattern: GPT2_PATTERN,
        digits: true,
        ignore_merges: false,
        begins: false,
        composes: false,
    },
    Rule {
        name: "llama-bpe",
        pattern: LLAMA3,
        digits: false,
        ignore_merges: true,
        begins: true,
        composes: false,
    },
    Rule {
        name: "qwen2",
        pattern: QWEN2,
        digits: false,
        ignore_merges: false,
        begins: false,
        composes: true,
    },
    Rule {
        name: "tekken",
        pattern: TEKKEN,
        digits: false,
        ignore_merges: true,
        begins: true,
        composes: false,
    },
];

/// The tokenizer, or `None` if the file has none.
pub(crate) fn tokenizer_json(file: &Gguf) -> Result<Option<Value>, Reason> {
    let vocabulary = Vocabulary { file };
    match vocabulary.find::<String>("model")?.as_deref() {
        None | Some("none") => Ok(None),
        Some("gpt2") => vocabulary.byte_level().map(Some),
        Some("llama") => vocabulary.sentence_pieces().map(Some),
        Some(other) => Err(format!(
            "tokenizer.ggml.model is {other:?}, but known are gpt2 and llama; name a tokenizer.json instead"
        )),
    }
}

struct Vocabulary<'a> {
    file: &'a Gguf,
}

impl Vocabulary<'_> {
    fn find<T: FromValue>(&self, key: &str) -> Result<Option<T>, Reason> {
        let said = |error: GgufError| error.to_string();
        self.file.find(&format!("tokenizer.ggml.{key}")).map_err(said)
    }

    fn get<T: FromValue>(&self, key: &str) -> Result<T, Reason> {
        self.find(key)?.ok_or_else(|| format!("tokenizer.ggml.{key} is missing"))
    }

    /// All tokens and their kinds.
    fn tokens(&self) -> Result<(Vec<String>, Vec<i32>), Reason> {
        let tokens: Vec<String> = self.get("tokens")?;
        let kinds = match self.find::<Vec<i32>>("token_type")? {
            None => vec![NORMAL; tokens.len()],
            Some(kinds) if kinds.len() == tokens.len() => kinds,
            Some(kinds) => {
                return Err(format!(
                    "tokenizer.ggml.token_type has {} entries for {} tokens",
                    kinds.len(),
                    tokens.len()
                ));
            }
        };
        if let Some(id) = kinds.iter().position(|kind| !KINDS.contains(kind)) {
            return Err(format!(
                "tokenizer.ggml.token_type of token {id} is {}, but known are 1 to 6; the file may be damaged",
                kinds[id]
            ));
        }
        Ok((tokens, kinds))
    }

    fn byte_level(&self) -> Result<Value, Reason> {
        let (tokens, kinds) = self.tokens()?;
        let named: Option<String> = self.find("pre")?;
        let rule = RULES.iter().find(|rule| Some(rule.name) == named.as_deref()).ok_or_else(|| {
            let known = RULES.iter().map(|rule| rule.name).collect::<Vec<_>>().join(", ");
            let found = named.map_or("missing".into(), |name| format!("{name:?}"));
            format!("tokenizer.ggml.pre is {found}, but known are {known}; name a tokenizer.json instead")
        })?;
        let merges: Vec<String> = self.get("merges")?;
        let pairs: Vec<Value> = merges
            .iter()
            .map(|merge| {
                // A token may itself begin with the space that separates the two.
                let first = merge.chars().next().map_or(0, char::len_utf8);
                let at = merge[first..].find(' ').map(|at| at + first);
                let at =
                    at.ok_or_else(|| format!("tokenizer.ggml.merges has {merge:?}, not a pair"))?;
                Ok(json!([merge[..at], merge[at + 1..]]))
            })
            .collect::<Result<_, Reason>>()?;
        let split = json!({"type": "Split", "pattern": {"Regex": rule.pattern},
            "behavior": "Isolated", "invert": false});
        let mut steps = vec![
            split,
            json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": false, "use_regex": false}),
        ];
        if rule.digits {
            steps.insert(0, json!({"type": "Digits", "individual_digits": true}));
        }
        let model = json!({"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": rule.ignore_merges,
            "vocab": identifiers(&tokens)?, "merges": pairs});
        let normalizer = if rule.composes { json!({"type": "NFC"}) } else { Value::Null };
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added(&tokens, &kinds),
            "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "post_processor": self.frame(&tokens, rule.begins)?,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true},
            "model": model,
        }))
    }

    fn sentence_pieces(&self) -> Result<Value, Reason> {
        if self.find("remove_extra_whitespaces")? == Some(true) {
            return Err(
                "tokenizer.ggml.remove_extra_whitespaces is true, which is not supported; name a \
                        tokenizer.json instead"
                    .into(),
            );
        }
        let (tokens, kinds) = self.tokens()?;
        let scores: Vec<f32> = self.get("scores")?;
        if scores.len() != tokens.len() {
            return Err(format!(
                "tokenizer.ggml.scores has {} entries for {} tokens",
                scores.len(),
                tokens.len()
            ));
        }
        let unknown = self.find::<usize>("unknown_token_id")?.and_then(|id| tokens.get(id));
        let model = json!({"type": "BPE", "dropout": null, "unk_token": unknown,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false,
            "vocab": identifiers(&tokens)?, "merges": merges(&tokens, &kinds, &scores)?});
        let prefix = self.find("add_space_prefix")?.unwrap_or(true);
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
        let mut before = vec![replace];
        let mut after = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            before.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
            after.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added(&tokens, &kinds),
            "normalizer": {"type": "Sequence", "normalizers": before},
            "pre_tokenizer": null,
            "post_processor": self.frame(&tokens, true)?,
            "decoder": {"type": "Sequence", "decoders": after},
            "model": model,
        }))
    }

    /// The tokens around a text.
    fn frame(&self, tokens: &[String], begins: bool) -> Result<Value, Reason> {
        let token = |wanted: bool, key: &str| -> Result<Option<(&String, u32)>, Reason> {
            if !wanted {
                return Ok(None);
            }
            let id: u32 = self.get(&format!("{key}_token_id"))?;
            let token = tokens.get(id as usize).map(|token| Some((token, id)));
            token.ok_or_else(|| {
                format!(
                    "tokenizer.ggml.{key}_token_id is {id}, but there are {} tokens",
                    tokens.len()
                )
            })
        };
        let begin = token(self.find("add_bos_token")?.unwrap_or(begins), "bos")?;
        let end = token(self.find("add_eos_token")?.unwrap_or(false), "eos")?;
        if begin.is_none() && end.is_none() {
            return Ok(Value::Null);
        }
        let special =
            |(token, _): (&String, u32)| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let around = |ids: &[&str]| -> Vec<Value> {
            let each = ids.iter().flat_map(|id| {
                [begin.map(special), Some(text(id)), end.map(special)].into_iter().flatten()
            });
            each.collect()
        };
        let known: Map<String, Value> = [begin, end]
            .into_iter()
            .flatten()
            .map(|(token, id)| {
                (token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}))
            })
            .collect();
        Ok(json!({"type": "TemplateProcessing", "single": around(&["A"]),
            "pair": around(&["A", "B"]), "special_tokens": known}))
    }
}

/// Tokens with their ids.
fn identifiers(tokens: &[String]) -> Result<Map<String, Value>, Reason> {
    let mut map = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = map.insert(token.clone(), id.into()) {
            return Err(format!("tokenizer.ggml.tokens has {token:?} twice, as {first} and {id}"));
        }
    }
    Ok(map)
}

/// Tokens that are found in a text before anything else.
fn added(tokens: &[String], kinds: &[i32]) -> Vec<Value> {
    let each = tokens.iter().zip(kinds).enumerate();
    each.filter(|(_, (_, kind))| [CONTROL, USER_DEFINED].contains(kind))
        .map(|(id, (token, kind))| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": *kind == CONTROL})
        })
        .collect()
}

/// Every way to put a piece together from two others, the highest score first.
fn merges(tokens: &[String], kinds: &[i32], scores: &[f32]) -> Result<Vec<Value>, Reason> {
    let ordinary = |id: usize| [NORMAL, USER_DEFINED, UNUSED].contains(&kinds[id]);
    let ids: HashMap<&str, usize> = (tokens.iter().enumerate())
        .filter(|(id, _)| ordinary(*id))
        .map(|(id, token)| (token.as_str(), id))
        .collect();
    let most = (MERGES_PER_TOKEN * ids.len()).max(FEW_MERGES);
    let most_bytes = (MERGES_PER_TOKEN * ids.keys().map(|token| token.len()).sum::<usize>())
        .max(FEW_MERGES * LONGEST_PIECE);
    let mut bytes = 0;
    let mut found: Vec<Merge> = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| ordinary(*id)) {
        if token.len() > LONGEST_PIECE {
            return Err(format!(
                "token {id} has {} bytes, but no piece has more than {LONGEST_PIECE}; name a tokenizer.json instead",
                token.len()
            ));
        }
        let characters = token.chars().count();
        for (split, (at, _)) in token.char_indices().enumerate().skip(1) {
            if let (Some(&left), Some(&right)) = (ids.get(&token[..at]), ids.get(&token[at..])) {
                found.push(Merge {
                    score: scores[id],
                    lengths: [split, characters - split],
                    left,
                    right,
                });
                bytes += token.len();
            }
        }
        if found.len() > most || bytes > most_bytes {
            return Err(format!(
                "its {} pieces can be merged in more than {most} ways, which no real vocabulary has; name a \
                 tokenizer.json instead",
                ids.len()
            ));
        }
    }
    // For each piece the split with the longest left part comes first, as in Hugging Face's conversion.
    found.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.lengths.cmp(&a.lengths)));
    let pair = |merge: Merge| json!([tokens[merge.left], tokens[merge.right]]);
    Ok(found.into_iter().map(pair).collect())
}

/// Two pieces that make a third.
struct Merge {
    /// Of the third.
    score: f32,
    /// Of the two, in characters.
    lengths: [usize; 2],
    left: usize,
    right: usize,
}
