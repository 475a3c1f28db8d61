use super::*;
use crate::config::tests::small;
use crate::config::{DepthKv, MlpKind};
use hadal_residual::ResidualConfig;

const EXACT: Memory = Memory { kept_share: None, recompute: false };
const AGAIN: Memory = Memory { kept_share: Some(0.01), recompute: true };

/// Two blocks of 8, hidden 32, two heads of 4, ten tokens, as small as sums by hand allow.
fn tiny(residual: &str) -> ModelConfig {
    ModelConfig {
        vocab_size: 10,
        d_model: 8,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 2,
        head_dim: 4,
        d_ff: 32,
        mlp: MlpKind::Relu2,
        qk_norm: false,
        tie_embeddings: true,
        depth_kv: DepthKv::None,
        max_seq_len: 64,
        residual: residual.parse().unwrap(),
        ..small()
    }
}

fn per_token(residual: &str, memory: Memory) -> f64 {
    UnmadeModel::of(&tiny(residual)).unwrap().kept_per_token(memory, 64) / FLOAT
}

#[test]
fn what_is_kept_of_a_token_is_the_sum_by_hand() {
    // Attention: input, queries, keys and values, the mixed values, two logarithms. MLP: input, hidden values.
    let block = (8 + 24 + 8 + 2) + (8 + 32);
    let head = 8;
    // The embedding and four sums; a norm before each of five readers.
    let prenorm = 8 + 4 * 8 + 5;
    assert_eq!(per_token("prenorm", EXACT), f64::from(2 * block + head + prenorm));
    // Sub-layers that are run again keep their inputs.
    assert_eq!(per_token("prenorm", AGAIN), f64::from(2 * 2 * 8 + head + prenorm));
    // Two streams: x and y but for the embedding, which is both, and three norms for each reader.
    let siamese = 8 + 4 * 2 * 8 + 5 * 3;
    assert_eq!(per_token("siamese", EXACT), f64::from(2 * block + head + siamese));
    // Each source with its norm; reader l weighs l sources, by a logit and a weight each.
    let attnres = 5 * (8 + 1) + 2 * (1 + 2 + 3 + 4 + 5);
    assert_eq!(per_token("attnres", EXACT), f64::from(2 * block + head + attnres));
}

/// Two streams of three writes: the embedding and the first write become streams, three writes are gated.
#[test]
fn inversion_keeps_writes_and_gates_instead_of_streams() {
    let state = 2 * (8 + 1 + 1);
    let writes = 3 * 8;
    // Of the readers: one number; two weights and scores; beside them three numbers of each gate.
    let numbers = 1 + (1 + 4) + 3 * (1 + 4 + 6);
    let block = (8 + 24 + 8 + 2) + (8 + 32);
    let rest = f64::from(2 * block + 8 + state + writes + numbers);
    assert_eq!(
        per_token("mgr:streams=2", Memory { kept_share: Some(0.0), recompute: false }),
        rest
    );
    // A copy of both streams and their numbers at each of three gated writes.
    assert_eq!(per_token("mgr:streams=2", EXACT), rest + f64::from(3 * 2 * 9));
    let share = per_token("mgr:streams=2", Memory::default());
    assert!((share - rest - 0.01 * 54.0).abs() < 1e-9, "{share}");
}

#[test]
fn the_fullest_moment_is_the_sum_by_hand() {
    // One sequence of two tokens; the way back through an MLP is the fullest moment of so few.
    let memory = UnmadeModel::of(&tiny("prenorm")).unwrap().pass_memory(EXACT, 1, 2);
    assert_eq!(memory.kept, 4 * 2 * (2 * 82 + 8 + 45));
    let matrices = 2.0 * 8.0 * 32.0;
    // The last block's MLP, when the head's gradient is there; or the first one's, when nearly all gradients are.
    let first_block = 4.0 * 64.0 + matrices + 2.0 * 8.0;
    let parameters = 80.0 + first_block;
    let gradients = parameters + matrices;
    // The first block's attention, the stream and its norms up to there, and the MLP's own.
    let activations = 2.0 * (42.0 + 40.0 + 8.0 + 8.0 + 2.0 + 8.0 + 1.0) - 2.0 * 9.0;
    let working = 2.0 * (8.0 + 8.0 + 3.0 * 8.0 + 32.0) + matrices;
    let found = memory.activations as f64 / 4.0;
    assert!((memory.gradients as f64 / 4.0 - gradients).abs() <= 16.0, "{memory:?}");
    assert!((memory.working as f64 / 4.0 - working).abs() <= 16.0, "{memory:?} is not {working}");
    assert!((found - activations).abs() <= 20.0, "{memory:?} is not {activations}");
}

#[test]
fn more_tokens_and_blocks_hold_more_and_recomputing_keeps_less() {
    for residual in ResidualConfig::all() {
        let config = ModelConfig { n_layers: 4, d_model: 16, ..tiny("prenorm") };
        let config = ModelConfig { residual, ..config };
        let name = config.residual.to_string();
        if config.check_fresh().is_err() {
            continue;
        }
        let model = UnmadeModel::of(&config).unwrap();
        let of = |memory, batch, time| model.pass_memory(memory, batch, time);
        let base = of(EXACT, 2, 32);
        assert!(of(EXACT, 3, 32).total() > base.total(), "{name}");
        assert!(of(EXACT, 2, 48).total() > base.total(), "{name}");
        assert!(of(Memory::default(), 2, 32).kept <= base.kept, "{name}");
        assert!(of(AGAIN, 2, 32).kept < base.kept, "{name}");
        let deeper = UnmadeModel::of(&ModelConfig { n_layers: 6, ..config }).unwrap();
        assert!(deeper.pass_memory(EXACT, 2, 32).kept > base.kept, "{name}");
    }
}

#[test]
fn a_petabyte_is_counted_without_being_made() {
    for residual in ResidualConfig::all() {
        let config =
            ModelConfig { d_model: 1 << 17, d_ff: 1 << 19, n_layers: 512, ..tiny("prenorm") };
        let config = ModelConfig { residual, ..config };
        let memory = UnmadeModel::of(&config).unwrap().pass_memory(EXACT, 1 << 20, 1 << 20);
        assert!(memory.total() > 1 << 50, "{}: {memory:?}", config.residual);
    }
}
