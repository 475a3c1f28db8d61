//! Whether AMX may be used: what the CPU says, what the system says, and what happens when it is tried.
//!
//! Some virtual machines show AMX and then stop a program that uses it. So a child process tries first, and only if it lives
//! and computes the right numbers, this process asks for permission itself. Linux grants it to the process with all its
//! threads, whenever it is asked, unless a thread has a signal stack that is too small for tiles.

use super::super::Passes;
use super::{NR, ROW, STEP, Sums, TALL};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::ffi::c_int;

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn alarm(seconds: u32) -> u32;
    fn _exit(code: c_int) -> !;
}

/// Whether tiles can be used in this process from now on. `HADAL_AMX=0` says no.
pub(in crate::gemm::words) fn usable() -> bool {
    let refused = std::env::var_os("HADAL_AMX").is_some_and(|value| value == "0");
    !refused && shown() && child_can(|| permitted() && right()) && permitted()
}

/// Whether the CPU shows tiles and their bf16 instructions, and the system keeps their state.
fn shown() -> bool {
    const TILE: u32 = 1 << 24;
    const BF16: u32 = 1 << 22;
    const XSAVE: u32 = 1 << 27;
    const STATES: u32 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & XSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    let states: u32;
    // SAFETY: the system uses XSAVE, so there is such a register.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") states, out("edx") _, options(nomem, nostack));
    }
    features & TILE != 0 && features & BF16 != 0 && states & STATES == STATES
}

/// Asks Linux to let this process use tiles: `arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`.
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XTILEDATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: this call touches no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Whether a child process does this to its end, and it is true. It may call nothing that a signal handler could not: threads of
/// this process may hold locks, also those of the allocator, and are not there in the child.
fn child_can(trial: impl Fn() -> bool) -> bool {
    const ILLEGAL: c_int = 4;
    const BUS: c_int = 7;
    const SEGMENT: c_int = 11;
    const ALARM: c_int = 14;
    const DEFAULT: usize = 0;
    /// In seconds; it takes a thousandth of one.
    const PATIENCE: u32 = 10;
    extern "C" fn leave(_: c_int) {
        // SAFETY: a child has nothing to clean up.
        unsafe { _exit(1) }
    }
    // SAFETY: the child calls nothing but what may be called in it.
    unsafe {
        let child = fork();
        if child == 0 {
            // No core file, no handler of the parent's, and no child that hangs.
            let leave = leave as extern "C" fn(c_int) as usize;
            [ILLEGAL, BUS, SEGMENT].iter().for_each(|number| {
                signal(*number, leave);
            });
            signal(ALARM, DEFAULT);
            alarm(PATIENCE);
            _exit(if trial() { 0 } else { 1 })
        }
        let mut status = !0;
        while child > 0 && waitpid(child, &mut status, 0) < 0 {
            if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                return false;
            }
        }
        child > 0 && status == 0
    }
}

/// Whether a small product is right: whole numbers, which are exact in bf16, and so are their sums.
fn right() -> bool {
    let left = |row: usize, depth: usize| ((row + 3 * depth) % 7) as f32 - 3.0;
    let right = |depth: usize, column: usize| ((5 * depth + column) % 9) as f32 - 4.0;
    let word = |low: f32, high: f32| (low.to_bits() >> 16) | (high.to_bits() & 0xffff_0000);
    let (mut a, mut b) = ([0; 2 * TALL * ROW], [[[0; NR]; STEP]; 2]);
    for (row, words) in a.chunks_exact_mut(ROW).enumerate() {
        for (pair, to) in words[..STEP].iter_mut().enumerate() {
            *to = word(left(row, 2 * pair), left(row, 2 * pair + 1));
        }
    }
    for (panel, words) in b.iter_mut().enumerate() {
        for (pair, words) in words.iter_mut().enumerate() {
            for (column, to) in (panel * NR..).zip(words) {
                *to = word(right(2 * pair, column), right(2 * pair + 1, column));
            }
        }
    }
    let mut sums = Sums([[[f32::NAN; NR]; TALL]; 4]);
    let passes = Passes { starts: [[0; 2]; 6], count: 1, words: STEP };
    // SAFETY: all words are there; whether the instructions are is what is tried, in a child.
    unsafe {
        let b = b.as_flattened().as_flattened();
        super::with_tiles(|| {
            super::block(&passes, [a.as_ptr(), b.as_ptr()], STEP * NR, true, &mut sums)
        });
    }
    let want = |row: usize, column: usize| -> f32 {
        (0..2 * STEP).map(|depth| left(row, depth) * right(depth, column)).sum()
    };
    (0..2 * TALL).all(|row| {
        (0..2 * NR).all(|column| {
            sums.0[row / TALL * 2 + column / NR][row % TALL][column % NR] == want(row, column)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the model where this CPU has no tiles; in a child they have no model.
    #[test]
    fn a_trial_is_right_with_tiles_and_fails_without() {
        super::super::emulator::install();
        assert!(right());
        if !shown() {
            assert!(!child_can(right));
            assert!(!usable());
        }
    }

    #[test]
    fn only_a_child_that_lives_and_is_right_can() {
        assert!(child_can(|| true));
        assert!(!child_can(|| false));
        let illegal = || {
            // SAFETY: it ends the child, as it should.
            unsafe { asm!("ud2", options(noreturn)) }
        };
        assert!(!child_can(illegal));
        // Killed by a signal that it does not catch.
        assert!(!child_can(|| std::process::abort()));
    }
}
