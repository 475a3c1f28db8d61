use hadal_cpu::Rows;
use hadal_cpu::streams::Stream;
use hadal_cpu::streams::mgr::{Gate, Memory, Mgr, Settings};
use std::sync::Arc;

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
}

fn cpu() -> f64 {
    let mut t = [0i64; 2];
    unsafe { clock_gettime(3, &mut t) };
    t[0] as f64 * 1e3 + t[1] as f64 * 1e-6
}

#[test]
#[ignore]
fn timing() {
    let threads: usize = std::env::var("T").map_or(1, |t| t.parse().unwrap());
    let reps: usize = std::env::var("REPS").map_or(8, |t| t.parse().unwrap());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let now = || if threads == 1 { cpu() } else { START.elapsed().as_secs_f64() * 1e3 };
    pool.install(|| {
        for (memory, streams) in [
            (Memory::Inversion { share: 0.01 }, 4),
            (Memory::Inversion { share: 0.01 }, 8),
            (Memory::Exact, 4),
        ] {
            let tokens: usize = std::env::var("TOKENS").map_or(2048, |t| t.parse().unwrap());
            let (width, junctions) = (256, 17);
            let settings = Settings { width, eps: 1e-6, streams, gate: Gate::Competitive, memory };
            let d = vec![0.01f32; tokens * width];
            let (mut fwds, mut bwds) = (vec![f64::MAX; 17], vec![f64::MAX; 17]);
            let mut junk = vec![0u8; if tokens < 2048 { 64 } else { 48 << 20 }];
            let writes: Vec<Rows> = (0..junctions).map(|k| Arc::new((0..tokens * width).map(|i| (((i * 7919 + k * 104729) % 1000) as f32 - 500.0) * 0.002).collect::<Vec<f32>>()) as Rows).collect();
            for _ in 0..reps {
                let mut mgr = Mgr::new(settings, junctions, true);
                let params: Vec<Vec<f32>> = (0..junctions).map(|k| {
                    let mut p: Vec<f32> = (0..mgr.parameters(k)).map(|i| ((i * 31 + k) % 17) as f32 * 0.005).collect();
                    if k >= streams { p[width] = 3.0; }
                    p
                }).collect();
                for k in 0..junctions {
                    junk.iter_mut().step_by(64).for_each(|x| *x += 1);
                    let w = writes[k].clone();
                    let t = now();
                    std::hint::black_box(mgr.forward(w, &params[k]));
                    fwds[k] = fwds[k].min(now() - t);
                }
                for k in (0..junctions).rev() {
                    junk.iter_mut().step_by(64).for_each(|x| *x += 1);
                    let t = now();
                    std::hint::black_box(mgr.backward(&d, &params[k]));
                    bwds[k] = bwds[k].min(now() - t);
                }
            }
            let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
            println!("{memory:?} n={streams}, {threads} threads: gated forward {:.3} ms backward {:.3} ms; append {:.3} {:.3}", mean(&fwds[streams..]), mean(&bwds[streams..16]), mean(&fwds[1..streams]), mean(&bwds[1..streams]));
        }
    });
}
static START: std::sync::LazyLock<std::time::Instant> =
    std::sync::LazyLock::new(std::time::Instant::now);
