//! A model of AMX for tests on CPUs without it: each of its instructions stops the program, and a signal handler does what the
//! instruction would have done.
//!
//! It knows the instructions that this module uses. Sums are those of Intel's manual: products of even and of odd elements
//! apart along a tile, then both added to what was there.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Once;

/// Eight tiles of 16 rows of 64 bytes, as words, and whether they have a shape.
struct Tiles {
    words: [[[u32; 16]; 16]; 8],
    shaped: bool,
}

thread_local! {
    static TILES: UnsafeCell<Tiles> =
        const { UnsafeCell::new(Tiles { words: [[[0; 16]; 16]; 8], shaped: false }) };
}

#[repr(C)]
struct Action {
    handler: usize,
    flags_and_mask: [u64; 18],
}

unsafe extern "C" {
    fn sigaction(number: c_int, new: *const Action, old: *mut Action) -> c_int;
    fn _exit(code: c_int) -> !;
}

/// From now on, AMX instructions that this CPU refuses are carried out by the model.
pub(in crate::gemm::words) fn install() {
    static ONCE: Once = Once::new();
    const ILLEGAL: c_int = 4;
    /// The handler takes three arguments.
    const SIGINFO: u64 = 4;
    ONCE.call_once(|| {
        let handler = step as extern "C" fn(c_int, *mut c_void, *mut c_void) as usize;
        let mut action = Action { handler, flags_and_mask: [0; 18] };
        // glibc's order: handler, mask of 128 bytes, flags.
        action.flags_and_mask[16] = SIGINFO;
        // SAFETY: it has the layout of glibc's on x86-64.
        let result = unsafe { sigaction(ILLEGAL, &action, std::ptr::null_mut()) };
        assert_eq!(result, 0);
    });
}

/// Where the registers of an instruction's numbers are in a context: those of glibc on x86-64.
const REGISTERS: [usize; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
const INSTRUCTION: usize = 16;

extern "C" fn step(_: c_int, _: *mut c_void, context: *mut c_void) {
    // SAFETY: 40 bytes into the context are the general registers; the instruction pointer points to an instruction that the CPU
    // has read.
    let done = unsafe {
        let registers = context.cast::<u64>().add(5);
        let at = *registers.add(INSTRUCTION) as *const u8;
        let length = TILES.with(|tiles| carry_out(&mut *tiles.get(), at, registers));
        length.map(|length| *registers.add(INSTRUCTION) += length)
    };
    if done.is_none() {
        // SAFETY: something else that is illegal: nothing can be done.
        unsafe { _exit(101) }
    }
}

/// Carries out one instruction, and returns its length; nothing if it is not one of AMX.
unsafe fn carry_out(tiles: &mut Tiles, at: *const u8, registers: *const u64) -> Option<u64> {
    // SAFETY: passed on from the caller; bytes are read only as far as the instruction goes.
    unsafe {
        let byte = |i: usize| usize::from(*at.add(i));
        if byte(0) != 0xC4 || byte(1) & 0x1F != 2 {
            return None;
        }
        let (high_index, high_base) = ((!byte(1) >> 6 & 1) * 8, (!byte(1) >> 5 & 1) * 8);
        let (third, prefix) = (!byte(2) >> 3 & 15, byte(2) & 3);
        let (opcode, mode) = (byte(3), byte(4));
        let (kind, reg, rm) = (mode >> 6, mode >> 3 & 7, mode & 7);
        let value = |number: usize| *registers.add(REGISTERS[number]) as usize;
        let offset = |place: usize| match kind {
            1 => (*at.add(place) as i8 as isize as usize, 1),
            2 => (at.add(place).cast::<i32>().read_unaligned() as isize as usize, 4),
            _ => (0, 0),
        };
        match (opcode, prefix, kind) {
            // ldtilecfg, with or without a second byte of address.
            (0x49, 0, 0..3) => {
                let (address, length) = match rm {
                    4 => {
                        let (offset, more) = offset(6);
                        assert_eq!(byte(5) >> 3 & 7, 4, "no index");
                        (value(byte(5) & 7 | high_base).wrapping_add(offset), 6 + more)
                    }
                    _ => {
                        let (offset, more) = offset(5);
                        (value(rm | high_base).wrapping_add(offset), 5 + more)
                    }
                };
                let shapes = *(address as *const [u8; 64]);
                let whole = shapes == super::Shapes::WHOLE.0;
                tiles.shaped = whole;
                whole.then_some(length)
            }
            // tilerelease
            (0x49, 0, 3) => {
                *tiles = Tiles { words: [[[0; 16]; 16]; 8], shaped: false };
                Some(5)
            }
            _ if !tiles.shaped => None,
            // tilezero
            (0x49, 3, 3) => {
                tiles.words[reg] = [[0; 16]; 16];
                Some(5)
            }
            // tileloadd, tilestored
            (0x4B, 2 | 3, 0..3) if rm == 4 => {
                let (sib, (offset, more)) = (byte(5), offset(6));
                let stride = value(sib >> 3 & 7 | high_index) << (sib >> 6);
                let first = value(sib & 7 | high_base).wrapping_add(offset);
                for row in 0..16 {
                    let memory = first.wrapping_add(row * stride) as *mut [u32; 16];
                    match prefix {
                        3 => tiles.words[reg][row] = memory.read_unaligned(),
                        _ => memory.write_unaligned(tiles.words[reg][row]),
                    }
                }
                Some(6 + more)
            }
            // tdpbf16ps
            (0x5C, 2, 3) => {
                let (left, right) = (tiles.words[rm], tiles.words[third]);
                for (sums, left) in tiles.words[reg].iter_mut().zip(&left) {
                    multiply(sums, left, &right);
                }
                Some(5)
            }
            _ => None,
        }
    }
}

fn multiply(sums: &mut [u32; 16], left: &[u32; 16], right: &[[u32; 16]; 16]) {
    let low = |word: u32| f32::from_bits(word << 16);
    let high = |word: u32| f32::from_bits(word & 0xffff_0000);
    for (column, sum) in sums.iter_mut().enumerate() {
        let (mut even, mut odd) = (0f32, 0f32);
        for (left, right) in left.iter().zip(right) {
            even = low(*left).mul_add(low(right[column]), even);
            odd = high(*left).mul_add(high(right[column]), odd);
        }
        *sum = (f32::from_bits(*sum) + (even + odd)).to_bits();
    }
}
