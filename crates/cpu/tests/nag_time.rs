//! Timing, to be removed.
use hadal_cpu::Rows;
use hadal_cpu::streams::{Nag, Stream};
use std::sync::Arc;
use std::time::Instant;
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}
#[test]
#[ignore]
fn timing() {
    let (tokens, width, c, sites) = (2048, 256, 32, 16);
    let params: Vec<Vec<f32>> = (0..=sites)
        .map(|j| {
            let mut p: Vec<f32> = if j == 0 { vec![0.1] } else { vec![] };
            if j < sites {
                p.extend(noise(j as u64 + 1, c * width).iter().map(|x| x * 0.03));
                p.extend(vec![0.0; c]);
                p.extend(vec![1.0 / c as f32; c]);
                p.extend([1.0, 0.5]);
            }
            p
        })
        .collect();
    let writes: Vec<Rows> =
        (0..=sites).map(|j| Arc::new(noise(100 + j as u64, tokens * width)) as Rows).collect();
    let d = noise(7, tokens * width);
    let (mut f, mut b) = (vec![], vec![]);
    for _ in 0..40 {
        let mut s = Nag::new(width, sites, c, None, true);
        let mut outs = vec![];
        let t = Instant::now();
        for (w, p) in writes.iter().zip(&params) {
            outs.push(s.forward(w.clone(), p));
        }
        f.push(t.elapsed().as_secs_f64() * 1e3 / 17.0);
        let t = Instant::now();
        for p in params.iter().rev() {
            std::hint::black_box(s.backward(&d, p));
        }
        b.push(t.elapsed().as_secs_f64() * 1e3 / 17.0);
    }
    f.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    let one: Vec<Rows> =
        (0..=sites).map(|j| Arc::new(noise(100 + j as u64, width)) as Rows).collect();
    let mut decode = f64::MAX;
    for _ in 0..50 {
        let t = Instant::now();
        let mut s = Nag::new(width, sites, c, None, false);
        for (w, p) in one.iter().zip(&params) {
            std::hint::black_box(s.forward(w.clone(), p));
        }
        decode = decode.min(t.elapsed().as_secs_f64() * 1e6 / 17.0);
    }
    println!(
        "TIME forward best {:.3} median {:.3}, backward best {:.3} median {:.3} ms per junction; one token {decode:.2} us",
        f[0], f[20], b[0], b[20]
    );
}
