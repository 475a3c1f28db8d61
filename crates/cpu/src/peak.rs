//! How many multiply-adds a thread can do: a loop that touches nothing but registers.
//!
//! What a kernel reaches of it is its own doing. A matrix product as a measure would hide what both lack.

use crate::simd::Form;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The best of this many loops counts: other programs can only slow one down.
const TRIES: usize = 100;
/// Rounds of a loop: less than a millisecond, so that some of the loops are not interrupted.
const ROUNDS: usize = 1 << 17;

/// GFLOP/s of multiply-adds, a product and a sum each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Of one thread while the others rest.
    pub thread: f64,
    /// Of all threads of the pool that it is measured in, at once.
    pub all: f64,
}

impl Peak {
    /// Measures it on every thread of the current pool.
    pub fn of(form: Form) -> Self {
        let threads = rayon::current_num_threads();
        let thread = best(|| alone(form));
        Self { thread, all: if threads > 1 { best(|| together(form, threads)) } else { thread } }
    }
}

fn best(measure: impl Fn() -> f64) -> f64 {
    (0..TRIES).map(|_| measure()).fold(0.0, f64::max)
}

fn alone(form: Form) -> f64 {
    let started = Instant::now();
    let operations = multiply_add(form);
    operations / started.elapsed().as_secs_f64() / 1e9
}

/// From the first thread's start to the last one's end.
fn together(form: Form, threads: usize) -> f64 {
    let ready = AtomicUsize::new(0);
    let parts = rayon::broadcast(|_| {
        ready.fetch_add(1, Ordering::Relaxed);
        while ready.load(Ordering::Relaxed) < threads {
            std::thread::yield_now();
        }
        let started = Instant::now();
        let operations = multiply_add(form);
        (operations, started, Instant::now())
    });
    let operations: f64 = parts.iter().map(|(operations, ..)| operations).sum();
    let started = parts.iter().map(|&(_, started, _)| started).min();
    let ended = parts.iter().map(|&(.., ended)| ended).max();
    let seconds = started
        .zip(ended)
        .map_or(f64::INFINITY, |(started, ended)| ended.duration_since(started).as_secs_f64());
    operations / seconds / 1e9
}

/// Runs the loop once, and says how many operations it did.
fn multiply_add(form: Form) -> f64 {
    let operations = match form {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the form carries the proof that its instructions were detected.
        Form::Avx512(_) => unsafe { x86::avx512() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the form carries the proof that AVX2 and FMA were detected.
        Form::Avx2(_) => unsafe { x86::avx2() },
        _ => portable(),
    };
    operations as f64
}

/// Products and sums apart, as the portable kernels have them, in as many registers of four as every CPU has to spare.
fn portable() -> usize {
    const SUMS: usize = 10;
    const LANES: usize = 4;
    let mut sums = [[0f32; LANES]; SUMS];
    let (x, y) = std::hint::black_box(([1.0f32; LANES], [1e-3f32; LANES]));
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            for j in 0..LANES {
                sum[j] += x[j] * y[j];
            }
        }
    }
    std::hint::black_box(sums);
    2 * SUMS * LANES * ROUNDS
}

/// In assembler, so that every sum stays in its register. Twelve of them are more than the two multipliers of any CPU
/// have under way at a time.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::ROUNDS;
    use std::arch::asm;

    const SUMS: usize = 12;

    macro_rules! register_loop {
        ($name:ident, $features:literal, $register:literal, $lanes:literal) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name() -> usize {
                // SAFETY: registers alone are touched, all of them named, and the loop ends: there is a round.
                unsafe {
                    asm!(
                        "vpxor xmm0, xmm0, xmm0",
                        "vpxor xmm1, xmm1, xmm1",
                        "vpxor xmm2, xmm2, xmm2",
                        "vpxor xmm3, xmm3, xmm3",
                        "vpxor xmm4, xmm4, xmm4",
                        "vpxor xmm5, xmm5, xmm5",
                        "vpxor xmm6, xmm6, xmm6",
                        "vpxor xmm7, xmm7, xmm7",
                        "vpxor xmm8, xmm8, xmm8",
                        "vpxor xmm9, xmm9, xmm9",
                        "vpxor xmm10, xmm10, xmm10",
                        "vpxor xmm11, xmm11, xmm11",
                        concat!("vbroadcastss ", $register, "12, xmm12"),
                        ".p2align 5",
                        "2:",
                        concat!("vfmadd231ps ", $register, "0, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "1, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "2, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "3, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "4, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "5, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "6, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "7, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "8, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "9, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "10, ", $register, "12, ", $register, "12"),
                        concat!("vfmadd231ps ", $register, "11, ", $register, "12, ", $register, "12"),
                        "dec {rounds}",
                        "jnz 2b",
                        "vzeroupper",
                        rounds = inout(reg) ROUNDS => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        inout("xmm12") 0.03f32 => _,
                        out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nomem, nostack),
                    );
                }
                2 * SUMS * $lanes * ROUNDS
            }
        };
    }

    register_loop!(avx2, "avx2,fma", "ymm", 8);
    register_loop!(avx512, "avx512f,avx2,fma", "zmm", 16);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_a_peak() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for form in Form::all() {
            let peak = pool.install(|| Peak::of(form));
            assert!(peak.thread > 0.1 && peak.all > 0.1, "{form}: {peak:?}");
        }
    }
}
