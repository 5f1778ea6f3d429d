//! Whether AMX may be used: the CPU has it, the system saves its state, the process has asked for it, and it works.
//!
//! Virtual machines mask and mix features, and there are some on which the first tile instruction kills the process.
//! So the answer is taken from CPUID, XCR0 and the kernel, never from the CPU's name, and then tried out in a child
//! process.

/// Why AMX is not used, where the CPU claims to have it or parts of it are missing; `Ok` if it may be used.
///
/// The first call asks the kernel for permission, which holds for all threads of the process, and runs the trial.
pub(crate) fn usable() -> Result<(), &'static str> {
    static ANSWER: std::sync::OnceLock<Result<(), &'static str>> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(look)
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn look() -> Result<(), &'static str> {
    Err("needs x86-64 and Linux")
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn look() -> Result<(), &'static str> {
    x86::cpu()?;
    x86::permission()?;
    x86::trial()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::time::{Duration, Instant};

    /// Number of the extended state component that holds the tile registers.
    const TILE_DATA: u64 = 18;
    /// `ARCH_REQ_XCOMP_PERM` of arch_prctl(2).
    const REQUEST_PERMISSION: i32 = 0x1023;
    /// How long the trial may take: it needs microseconds.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// AMX-TILE, AMX-INT8, and the state components 17 and 18 in XCR0.
    pub(super) fn cpu() -> Result<(), &'static str> {
        if __cpuid(0).eax < 7 {
            return Err("the CPU has no AMX");
        }
        let has_int8 = __cpuid_count(7, 0).edx;
        if has_int8 >> 24 & 1 == 0 || has_int8 >> 25 & 1 == 0 {
            return Err("the CPU has no AMX");
        }
        if __cpuid(1).ecx >> 27 & 1 == 0 {
            return Err("the system does not use XSAVE");
        }
        let (low, _high): (u32, u32);
        // SAFETY: XSAVE is in use, so that XGETBV exists; register 0 does too.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack, preserves_flags));
        }
        if low >> 17 & 3 != 3 {
            return Err("the system does not save tile registers");
        }
        Ok(())
    }

    /// Asks the kernel, which refuses if it does not know AMX or if a thread's signal stack is too small.
    pub(super) fn permission() -> Result<(), &'static str> {
        // SAFETY: this call changes nothing but the process's permission.
        let refused = unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) };
        if refused == 0 { Ok(()) } else { Err("the kernel refuses the use of tile registers") }
    }

    /// Multiplies two tiles in a child process, where a fatal signal does no harm.
    pub(super) fn trial() -> Result<(), &'static str> {
        // SAFETY: the child of a process with several threads may call async-signal-safe functions only; it runs
        // arithmetic on its stack and _exit.
        let child = unsafe { libc::fork() };
        match child {
            -1 => Err("no process for the trial"),
            0 => {
                // SAFETY: the CPU and the kernel said yes; should they be wrong, the child dies alone.
                let right = unsafe { product() };
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(if right { 0 } else { 1 }) }
            }
            _ => wait(child),
        }
    }

    fn wait(child: libc::pid_t) -> Result<(), &'static str> {
        let start = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: our own child, waited for by nobody else.
            let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
            if ended == child {
                return match status {
                    0 => Ok(()),
                    _ if libc::WIFSIGNALED(status) => Err("a trial product was killed"),
                    _ => Err("a trial product was wrong"),
                };
            }
            // SAFETY: errno of the call above.
            let interrupted =
                ended == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
            if ended == -1 && !interrupted {
                return Err("the trial's end was not seen");
            }
            if start.elapsed() > PATIENCE {
                // SAFETY: our own child.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, &mut status, 0);
                }
                return Err("a trial product did not end");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// One product of two tiles by the unit, compared with the same by ordinary arithmetic.
    ///
    /// # Safety
    /// The CPU has AMX, and the kernel lets the process use it.
    unsafe fn product() -> bool {
        use crate::arch::AmxUnit;
        use crate::kernel::amx::{FULL, Tiles};
        #[repr(align(64))]
        struct Aligned<T>(T);
        let mut a = Aligned([[0i8; 64]; 16]);
        let mut b = Aligned([[0i8; 64]; 16]);
        let mut c = Aligned([[0i32; 16]; 16]);
        for i in 0..16 {
            for j in 0..64 {
                a.0[i][j] = (i * 37 + j * 11) as i8;
                b.0[i][j] = (i * 53 + j * 29) as i8;
            }
        }
        let mut unit = AmxUnit;
        // SAFETY: passed on; all tiles are sixteen rows of 64 bytes.
        unsafe {
            unit.configure(&FULL);
            unit.load::<4, 0>(a.0.as_ptr().cast());
            unit.load::<7, 0>(b.0.as_ptr().cast());
            unit.zero::<0>();
            unit.dot::<0, 4, 7>();
            unit.store::<0>(c.0.as_mut_ptr().cast());
            unit.release();
        }
        (0..16).all(|m| {
            (0..16).all(|n| {
                let product = |k: usize| i32::from(a.0[m][k]) * i32::from(b.0[k / 4][4 * n + k % 4]);
                c.0[m][n] == (0..64).map(product).sum::<i32>()
            })
        })
    }
}
