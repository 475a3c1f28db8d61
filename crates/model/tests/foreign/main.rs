//! Models of other makers: what `transformers` and llama.cpp compute with the same files.

mod gguf;
mod goldens;
mod hostile;
mod mutations;
mod smollm2;
mod support;
