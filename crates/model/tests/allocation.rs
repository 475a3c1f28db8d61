//! Decode steps allocate nothing: counted, not believed.

use hadal_kernels::fuses;
use hadal_model::{Decoder, Device, MlpKind, ModelConfig, Session, Variant};
use hadal_residual::ResidualConfig;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

thread_local! {
    static HERE: Cell<usize> = const { Cell::new(0) };
}
static ANYWHERE: AtomicUsize = AtomicUsize::new(0);
/// One of the counters is global, so measurements must not overlap.
static MEASURING: Mutex<()> = Mutex::new(());

struct Counting;

fn count() {
    ANYWHERE.fetch_add(1, SeqCst);
    // A thread that is being torn down has no counter any more.
    let _ = HERE.try_with(|here| here.set(here.get() + 1));
}

// SAFETY: every request is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn config(policy: &str, width: usize) -> ModelConfig {
    ModelConfig {
        vocab_size: 32,
        d_model: width,
        n_layers: 8,
        head_dim: width / 4,
        d_ff: 2 * width,
        mlp: MlpKind::Swiglu,
        norm_eps: 1e-6,
        qk_norm: true,
        max_seq_len: 512,
        residual: policy.parse().unwrap(),
        ..ModelConfig::tiny()
    }
}

/// Allocations on this thread, and on all, by each of `steps` decode steps after a prompt.
fn allocations(config: &ModelConfig, prompt: usize, steps: usize) -> Vec<(usize, usize)> {
    let decoder = Decoder::fresh(config, 1, &Device::flex()).unwrap();
    let mut session = Session::new(&decoder, Variant::default()).unwrap();
    session.reserve(prompt + steps + 1);
    assert!(session.decodes_tokens(), "{} does not step", config.residual);
    session.feed(&vec![7; prompt], None).unwrap();
    let step = |i: usize| {
        let before = (HERE.get(), ANYWHERE.load(SeqCst));
        session.feed(&[i as u32 % 32], None).unwrap();
        (HERE.get() - before.0, ANYWHERE.load(SeqCst) - before.1)
    };
    // The first step allocates the memory that all others use.
    (0..=steps).map(step).skip(1).collect()
}

/// Settings other than the defaults, which take other code paths.
const VARIANTS: [&str; 17] = [
    "nanochat",
    "sandwich:block_scale=true,gate_temperature=0.3,embed_norm=true",
    "hc:dynamic=false",
    "deepseek_v4",
    "deepseek_v4_1_flash:stream_scale=true",
    "hy4",
    "attnres:blocks=2",
    "attnres:heads=2,block_size=2",
    "attnres:normed=true",
    "attnres:delta=true,gated=true",
    "attnres:ways=3",
    "mudd:ways=1,norms=true",
    "gr:streams=3,rank=5,skip_threshold=1.0",
    "ddl:channels=3",
    "ddl:target=linear,skip_threshold=1.0",
    "mgr:streams=2,gate=independent,skip_threshold=0.3",
    "nag:skip_threshold=0.2",
];

/// Whether one token is decoded without tensors.
fn steps(config: &ModelConfig) -> bool {
    let decoder = Decoder::fresh(config, 1, &Device::flex()).unwrap();
    Session::new(&decoder, Variant::default()).unwrap().decodes_tokens()
}

#[test]
fn steps_allocate_nothing() {
    if !fuses(&Device::flex()) {
        return;
    }
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let defaults = ResidualConfig::all().into_iter().map(|policy| policy.to_string());
    let defaults = defaults.filter(|policy| steps(&config(policy, 32)));
    let policies: Vec<String> = defaults.chain(VARIANTS.map(String::from)).collect();
    assert!(policies.len() > VARIANTS.len(), "no policy steps");
    for policy in policies {
        let counts = allocations(&config(&policy, 32), 10, 200);
        let here: usize = counts.iter().map(|(here, _)| here).sum();
        assert_eq!(here, 0, "{policy}: {counts:?}");
    }
}

/// Large enough that every product and the attention are split among threads. What rayon allocates to hand over work is
/// its own: nothing with one thread. With two it is a block of its queues now and then, and more of them while other
/// programs keep a thread from its core; a kernel that allocates would do so dozens of times in a step.
#[test]
fn steps_that_are_shared_out_take_nothing_that_grows() {
    if !fuses(&Device::flex()) {
        return;
    }
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    const STEPS: usize = 100;
    for (threads, most) in [(1, 0), (2, STEPS)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let counts = pool.install(|| allocations(&config("mgr", 256), 300, STEPS));
        let all: usize = counts.iter().map(|(_, all)| all).sum();
        assert!(all <= most, "{threads} threads: {all} allocations in {STEPS} steps: {counts:?}");
    }
}
