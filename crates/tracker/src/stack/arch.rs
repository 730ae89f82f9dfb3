//! What differs between the instruction sets. Both are always compiled; `native` is the one of the target.

#[cfg(target_arch = "aarch64")]
pub use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;

/// System V ABI, AMD64 supplement, figure 3.36 (DWARF register numbers).
pub mod x86_64 {
    pub const FP: u64 = 6;
    pub const SP: u64 = 7;
    pub const RA: u64 = 16;

    /// `call` pushes the return address: the caller's stack pointer lies this far above the entry stack pointer.
    pub const RETURN_SLOT: i64 = 8;
    /// Bits of a return address that address code.
    pub const CODE_BITS: u64 = !0;

    /// In the signal trampoline rsp points at the `ucontext` of the kernel's `rt_sigframe` (the handler's `ret` has
    /// popped `pretcode`): 40 bytes of flags, link and stack, then `sigcontext`: r8..r15, di, si, bp, bx, dx, ax, cx,
    /// sp, ip (linux, arch/x86/include/uapi/asm/sigcontext.h).
    pub const SIGNAL_FP: i64 = 40 + 10 * 8;
    pub const SIGNAL_SP: i64 = 40 + 15 * 8;
    pub const SIGNAL_PC: i64 = 40 + 16 * 8;
}

/// DWARF for the Arm 64-bit architecture, table 4.
pub mod aarch64 {
    pub const FP: u64 = 29;
    pub const SP: u64 = 31;
    pub const RA: u64 = 30;

    /// `bl` leaves the return address in a register.
    pub const RETURN_SLOT: i64 = 0;
    /// Pointer authentication keeps its code in the bits above the 48-bit user address.
    pub const CODE_BITS: u64 = (1 << 48) - 1;

    /// `rt_sigframe` is a siginfo (128 bytes), then `ucontext`: 40 bytes, the signal mask padded to 128, aligned to 16,
    /// then `sigcontext`: fault address, x0..x30, sp, pc (linux, arch/arm64/include/uapi/asm/{ucontext,sigcontext}.h).
    pub const SIGNAL_FP: i64 = REGISTERS + 29 * 8;
    pub const SIGNAL_SP: i64 = REGISTERS + 31 * 8;
    pub const SIGNAL_PC: i64 = REGISTERS + 32 * 8;
    const REGISTERS: i64 = 128 + 176 + 8;
}
