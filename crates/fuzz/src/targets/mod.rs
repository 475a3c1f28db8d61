//! What is given hostile bytes, and what it may cost.

mod data;
mod gguf;
mod model;
mod prune;
mod runs;
mod serve;
mod settings;
mod template;
mod tokenizer;

pub use template::helped;
#[cfg(test)]
pub(crate) use template::outcome;

/// The words of `words/NAME.txt`.
macro_rules! words {
    ($name:literal) => {
        include_str!(concat!("../../words/", $name, ".txt"))
    };
}

/// Something that reads files.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// The longest input that is worth trying.
    pub longest: usize,
    /// The most memory that an input of so many bytes may take.
    pub memory: fn(usize) -> usize,
    /// Accepts any bytes.
    pub(crate) accept: fn(&[u8]),
    pub(crate) form: Form,
    /// Keys and values that it may know, apart from each other by spaces; changes put them where others were.
    pub(crate) words: &'static str,
    /// Mutations in an ordinary test.
    #[cfg_attr(not(test), allow(dead_code, reason = "only tests replay"))]
    pub(crate) replays: usize,
}

/// What the bytes of an input are.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    /// One file of this name.
    File(&'static str),
    /// Several, as `folder.rs` joins them.
    Folder,
}

const MB: usize = 1 << 20;
/// The declarations of a model of 4096 blocks, the most that a config may have.
const DECLARED: usize = 160 * MB;

/// All of them.
pub const TARGETS: [Target; 17] = [
    Target {
        name: "gguf",
        longest: 20_000,
        memory: |bytes| MB + 40 * bytes,
        accept: gguf::container,
        form: Form::File("a.gguf"),
        words: words!("gguf"),
        replays: 3000,
    },
    Target {
        name: "vocabulary",
        longest: 100_000,
        memory: |bytes| 12 * MB + 150 * bytes,
        accept: gguf::vocabulary,
        form: Form::File("a.gguf"),
        words: words!("gguf"),
        replays: 400,
    },
    Target {
        name: "gguf_model",
        longest: 20_000,
        memory: |bytes| DECLARED + 100 * bytes,
        accept: gguf::model,
        form: Form::File("a.gguf"),
        words: words!("gguf"),
        replays: 1500,
    },
    Target {
        name: "config",
        longest: 4096,
        memory: |bytes| DECLARED + 100 * bytes,
        accept: model::config,
        form: Form::File("config.json"),
        words: words!("config"),
        replays: 5000,
    },
    Target {
        name: "model",
        longest: 20_000,
        memory: |bytes| DECLARED + 100 * bytes,
        accept: model::directory,
        form: Form::Folder,
        words: words!("config"),
        replays: 1500,
    },
    Target {
        name: "safetensors",
        longest: 4096,
        memory: |bytes| MB + 100 * bytes,
        accept: model::tensors,
        form: Form::File("a.safetensors"),
        words: words!("config"),
        replays: 3000,
    },
    Target {
        name: "tokenizer",
        longest: 8192,
        memory: |bytes| 32 * MB + 200 * bytes,
        accept: tokenizer::tokenizer,
        form: Form::File("tokenizer.json"),
        words: words!("tokenizer"),
        replays: 1000,
    },
    Target {
        name: "template",
        longest: 4096,
        memory: |bytes| 32 * MB + 200 * bytes,
        accept: template::template,
        form: Form::File("chat_template.jinja"),
        words: words!("template"),
        replays: 80,
    },
    Target {
        name: "plan",
        longest: 8192,
        memory: |bytes| MB + 100 * bytes,
        accept: prune::plan,
        form: Form::File("plan.json"),
        words: words!("plan"),
        replays: 3000,
    },
    Target {
        name: "cut",
        longest: 20_000,
        memory: |bytes| DECLARED + 100 * bytes,
        accept: prune::cut,
        form: Form::Folder,
        words: words!("config"),
        replays: 500,
    },
    Target {
        name: "suite",
        longest: 4096,
        memory: |bytes| 4 * MB + 200 * bytes,
        accept: settings::suite,
        form: Form::File("suite.toml"),
        words: words!("settings"),
        replays: 2000,
    },
    Target {
        name: "run_config",
        longest: 4096,
        memory: |bytes| 4 * MB + 200 * bytes,
        accept: settings::run_config,
        form: Form::File("config.toml"),
        words: words!("settings"),
        replays: 2000,
    },
    Target {
        name: "run",
        longest: 16_000,
        memory: |bytes| 8 * MB + 200 * bytes,
        accept: runs::run,
        form: Form::Folder,
        words: words!("run"),
        replays: 1500,
    },
    Target {
        name: "report",
        longest: 16_000,
        memory: |bytes| 64 * MB + 200 * bytes,
        accept: runs::report,
        form: Form::Folder,
        words: words!("run"),
        replays: 40,
    },
    Target {
        name: "serve",
        longest: 16_000,
        memory: |bytes| 64 * MB + 200 * bytes,
        accept: serve::serve,
        form: Form::Folder,
        words: words!("run"),
        replays: 300,
    },
    Target {
        name: "documents",
        longest: 16_000,
        memory: |bytes| 64 * MB + 200 * bytes,
        accept: data::documents,
        form: Form::Folder,
        words: words!("run"),
        replays: 500,
    },
    Target {
        name: "parquet",
        longest: 4096,
        memory: |bytes| 300 * MB + 200 * bytes,
        accept: data::parquet,
        form: Form::File("a.parquet"),
        words: "",
        replays: 500,
    },
];
