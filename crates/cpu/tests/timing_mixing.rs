//! Temporary: CPU time per junction.
#![allow(missing_docs)]
#![allow(clippy::print_stdout)]
use hadal_cpu::Rows;
use hadal_cpu::streams::{Mixing, MixingKind, Stream};
use std::sync::Arc;

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e3779b97f4a7c15) | 1;
    (0..count)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}
fn cpu() -> f64 {
    let mut total = 0f64;
    for t in std::fs::read_dir("/proc/self/task").unwrap() {
        let s = std::fs::read_to_string(t.unwrap().path().join("schedstat")).unwrap();
        total += s.split(' ').next().unwrap().parse::<f64>().unwrap();
    }
    total / 1e6
}
#[test]
#[ignore]
fn speed() {
    let (tokens, width, n) = (2048, 256, 4);
    for kind in [
        MixingKind::Static,
        MixingKind::Dynamic,
        MixingKind::Sinkhorn { iterations: 20 },
        MixingKind::Permutations,
    ] {
        let sites = 8;
        let probe = Mixing::new(kind, n, width, 1e-6, sites, true);
        let writes: Vec<Rows> = (0..=sites)
            .map(|k| -> Rows { Arc::new(noise(k as u64 + 1, tokens * width)) })
            .collect();
        let params: Vec<Vec<f32>> = (0..=sites)
            .map(|k| noise(k as u64 + 100, probe.params(k)).iter().map(|p| p * 0.1).collect())
            .collect();
        let d = noise(77, tokens * width);
        let mut best = [f64::MAX; 4];
        let mut wall = [f64::MAX; 2];
        for _ in 0..8 {
            let mut stream = Mixing::new(kind, n, width, 1e-6, sites, true);
            let (mut f, mut b, mut wf, mut wb) = (0.0, 0.0, 0.0, 0.0);
            for k in 0..=sites {
                let (start, w) = (cpu(), std::time::Instant::now());
                std::hint::black_box(stream.forward(writes[k].clone(), &params[k]));
                let took = cpu() - start;
                if k == sites {
                    best[2] = best[2].min(took);
                } else if k > 0 {
                    f += took;
                    wf += w.elapsed().as_secs_f64() * 1e3;
                }
            }
            for k in (0..=sites).rev() {
                let (start, w) = (cpu(), std::time::Instant::now());
                std::hint::black_box(stream.backward(&d, &params[k]));
                let took = cpu() - start;
                if k == sites {
                    best[3] = best[3].min(took);
                } else if k > 0 {
                    b += took;
                    wb += w.elapsed().as_secs_f64() * 1e3;
                }
            }
            let s = (sites - 1) as f64;
            best[0] = best[0].min(f / s);
            best[1] = best[1].min(b / s);
            wall[0] = wall[0].min(wf / s);
            wall[1] = wall[1].min(wb / s);
        }
        println!(
            "{kind:?}: cpu forward {:.2} backward {:.2} close {:.2} back {:.2}; wall {:.2} {:.2}",
            best[0], best[1], best[2], best[3], wall[0], wall[1]
        );
    }
}
