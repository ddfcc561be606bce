//! The system call filter of a profile. It lists refused calls: an allow list would break programs with every
//! release of a C library.
//!
//! A refused call fails with EPERM. `clone3` fails with ENOSYS, because its flags are in memory that a
//! filter cannot read: C libraries then use `clone`, whose flags it sees. Programs for another
//! architecture than this one (32 bits on x86-64) are killed at their first call.

use std::fs::File;
use std::io;

/// A BPF instruction.
pub(super) type Instruction = libc::sock_filter;

/// Whether filters are supported on this architecture.
pub(super) const KNOWS_MACHINE: bool = cfg!(all(
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
));

#[cfg(all(
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod rules {
    //! Which system calls are refused.

    use std::collections::BTreeMap;
    use std::io;
    use std::sync::OnceLock;

    use libc::c_long;
    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch,
    };
    use toolwright_core::sandbox::{Grant, Restriction, SandboxProfile};

    use super::Instruction;

    /// Refused in every profile: [`Restriction::Kernel`], and calls that reach into other processes.
    const ALWAYS: &[c_long] = &[
        // Other processes' memory and descriptors.
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        // Mounts and roots.
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        OPEN_TREE_ATTR,
        libc::SYS_setns,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_quotactl,
        libc::SYS_open_by_handle_at,
        // Code in the kernel, and ways into it that many holes were found in.
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_kexec_load,
        // Keys of the kernel's rings.
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
        // The machine itself.
        libc::SYS_reboot,
        libc::SYS_syslog,
        libc::SYS_acct,
        libc::SYS_vhangup,
        libc::SYS_sethostname,
        libc::SYS_setdomainname,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_adjtimex,
        libc::SYS_clock_adjtime,
    ];

    /// Permissions, owners, times and attributes of files: [`Restriction::Metadata`], for profiles that write nowhere.
    const METADATA: &[c_long] = &[
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        FCHMODAT2,
        libc::SYS_fchown,
        libc::SYS_fchownat,
        libc::SYS_utimensat,
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_fsetxattr,
        libc::SYS_removexattr,
        libc::SYS_lremovexattr,
        libc::SYS_fremovexattr,
        SETXATTRAT,
        REMOVEXATTRAT,
        FILE_SETATTR,
    ];

    // Numbers that libc lacks for some architectures; from 424 on they are the same on all.
    const FCHMODAT2: c_long = 452;
    const SETXATTRAT: c_long = 463;
    const REMOVEXATTRAT: c_long = 466;
    const OPEN_TREE_ATTR: c_long = 467;
    const FILE_SETATTR: c_long = 469;

    /// Calls that newer architectures never had.
    #[cfg(target_arch = "x86_64")]
    mod older {
        use libc::c_long;

        pub(super) const ALWAYS: &[c_long] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load];
        pub(super) const METADATA: &[c_long] = &[
            libc::SYS_chmod,
            libc::SYS_chown,
            libc::SYS_lchown,
            libc::SYS_utime,
            libc::SYS_utimes,
            libc::SYS_futimesat,
        ];
    }

    #[cfg(not(target_arch = "x86_64"))]
    mod older {
        use libc::c_long;

        /// `kexec_file_load`
        pub(super) const ALWAYS: &[c_long] = &[294];
        pub(super) const METADATA: &[c_long] = &[];
    }

    /// New namespaces. A process that makes one for users has all rights in it.
    const NAMESPACES: [libc::c_int; 7] = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    /// Flag of unshare(2) only: clone(2) uses the bit for something else.
    const TIME_NAMESPACE: libc::c_int = 0x80;

    // Requests of ioctl(2).
    const TIOCSTI: u64 = 0x5412;
    const TIOCLINUX: u64 = 0x541C;
    const FS_IOC_SETFLAGS: u64 = 0x4008_6602;
    const FS_IOC_FSSETXATTR: u64 = 0x401C_5820;

    type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

    /// The filter of a profile, compiled once; empty for `full`.
    ///
    /// # Errors
    /// None in practice: the rules are constants.
    pub(in crate::enforce) fn program(profile: SandboxProfile) -> io::Result<&'static [Instruction]> {
        static COMPILED: [OnceLock<Vec<Instruction>>; SandboxProfile::ALL.len()] =
            [const { OnceLock::new() }; SandboxProfile::ALL.len()];
        let compiled = &COMPILED[profile as usize];
        match compiled.get() {
            Some(program) => Ok(program),
            None => compile(profile).map(|program| compiled.get_or_init(|| program).as_slice()),
        }
    }

    fn compile(profile: SandboxProfile) -> io::Result<Vec<Instruction>> {
        if profile == SandboxProfile::Full {
            return Ok(Vec::new());
        }
        let compiled = rules(profile).and_then(|rules| {
            let machine = TargetArch::try_from(std::env::consts::ARCH)?;
            let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
            BpfProgram::try_from(SeccompFilter::new(rules, SeccompAction::Allow, refuse, machine)?)
        });
        let compiled = compiled.map_err(io::Error::other)?;
        let body = compiled.iter().map(|one| Instruction { code: one.code, jt: one.jt, jf: one.jf, k: one.k });
        Ok(preamble().into_iter().chain(body).collect())
    }

    fn rules(profile: SandboxProfile) -> Result<Rules, BackendError> {
        let mut rules: Rules = BTreeMap::new();
        let mut refuse = |calls: &[c_long]| rules.extend(calls.iter().map(|call| (*call, Vec::new())));
        refuse(ALWAYS);
        refuse(older::ALWAYS);
        let mut requests = vec![TIOCSTI, TIOCLINUX];
        // Profiles with a writable workspace need them there, and a filter does not see paths.
        if !profile.grants().contains(&Grant::Write(toolwright_core::sandbox::Area::Workspace)) {
            refuse(METADATA);
            refuse(older::METADATA);
            requests.extend([FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR]);
        }
        let restrictions = profile.restrictions();
        if restrictions.contains(&Restriction::Services) {
            refuse(&[libc::SYS_connect]);
            rules.insert(libc::SYS_sendto, vec![rule(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?]);
        }
        if restrictions.contains(&Restriction::Network) {
            for call in [libc::SYS_socket, libc::SYS_socketpair] {
                rules.insert(call, vec![rule(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?]);
            }
        }
        let requests: Result<_, _> =
            requests.into_iter().map(|request| rule(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request)).collect();
        rules.insert(libc::SYS_ioctl, requests?);
        let namespaces: Vec<u64> = NAMESPACES.iter().map(|flag| u64::from(flag.cast_unsigned())).collect();
        rules.insert(libc::SYS_clone, any_bit(0, &namespaces)?);
        let with_time = [namespaces, vec![u64::from(TIME_NAMESPACE.cast_unsigned())]].concat();
        rules.insert(libc::SYS_unshare, any_bit(0, &with_time)?);
        // The limits of other processes.
        rules.insert(libc::SYS_prlimit64, vec![rule(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0)?]);
        Ok(rules)
    }

    fn rule(
        argument: u8,
        length: SeccompCmpArgLen,
        operator: SeccompCmpOp,
        value: u64,
    ) -> Result<SeccompRule, BackendError> {
        SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])
    }

    /// Matches if any of the bits is set.
    fn any_bit(argument: u8, bits: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
        bits.iter().map(|&bit| rule(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bit), bit)).collect()
    }

    /// Instructions that the rule compiler cannot express: ENOSYS for `clone3` and for the x32 call numbers of x86-64.
    fn preamble() -> Vec<Instruction> {
        const LOAD_WORD: u16 = 0x20;
        const JUMP_IF_EQUAL: u16 = 0x15;
        const JUMP_IF_AT_LEAST: u16 = 0x35;
        const RETURN: u16 = 0x06;
        const X32: u32 = 0x4000_0000;
        let absent =
            Instruction { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs() };
        // The call number is at offset 0 of the filter's input.
        let load = Instruction { code: LOAD_WORD, jt: 0, jf: 0, k: 0 };
        let clone3 = Instruction { code: JUMP_IF_EQUAL, jt: 0, jf: 1, k: libc::SYS_clone3 as u32 };
        let mut all = vec![load, clone3, absent];
        if cfg!(target_arch = "x86_64") {
            all.extend([Instruction { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: X32 }, absent]);
        }
        all
    }
}

#[cfg(all(
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
pub(super) use rules::program;

/// There are no filters for this architecture, which is reported.
#[cfg(not(all(
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
#[expect(clippy::unnecessary_wraps, reason = "the signature is that of other architectures")]
pub(super) fn program(_profile: toolwright_core::SandboxProfile) -> io::Result<&'static [Instruction]> {
    Ok(&[])
}

/// Writes the filter to a file for a program that installs it; `None` for an empty filter.
pub(super) fn as_file(filter: &[Instruction]) -> io::Result<Option<File>> {
    use std::io::{Seek as _, Write as _};
    if filter.is_empty() {
        return Ok(None);
    }
    let mut file = tempfile::tempfile()?;
    for instruction in filter {
        file.write_all(&instruction.code.to_ne_bytes())?;
        file.write_all(&[instruction.jt, instruction.jf])?;
        file.write_all(&instruction.k.to_ne_bytes())?;
    }
    file.rewind()?;
    Ok(Some(file))
}
