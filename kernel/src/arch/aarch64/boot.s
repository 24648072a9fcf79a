// From reset, or from PSCI, to Rust: see boot.rs for what happens and why.
//
// x19: the CPU's number, 0 for the one that boots the image.

.section .boot, "ax"
.global _start
_start:
    mov x19, xzr
    b 1f
.global _secondary_start
_secondary_start:                       // x0: what CPU_ON was given
    mov x19, x0
1:  msr daifset, #15
    mrs x1, CurrentEL
    cmp x1, #8
    b.ne 2f

    // At EL2: give EL1 all it needs and go there.
    mov x1, #(1 << 31)                  // HCR_EL2.RW: EL1 is AArch64
    msr hcr_el2, x1
    mov x1, #3                          // CNTHCTL_EL2: EL1 may read the counter
    msr cnthctl_el2, x1
    msr cntvoff_el2, xzr
    mov x1, #0x33ff                     // CPTR_EL2: RES1 bits, nothing trapped
    msr cptr_el2, x1
    mrs x1, midr_el1
    msr vpidr_el2, x1
    mrs x1, mpidr_el1
    msr vmpidr_el2, x1
    mov x1, #0xf                        // ICC_SRE_EL2: system registers of the GIC, for EL1 too
    msr s3_4_c12_c9_5, x1
    mov x1, #0x3c5                      // EL1h, all masked
    msr spsr_el2, x1
    adr x1, 2f
    msr elr_el2, x1
    eret

2:  mov x1, #(3 << 20)                  // CPACR_EL1.FPEN: compiled Rust uses the vector registers
    msr cpacr_el1, x1
    ldr x1, mair
    msr mair_el1, x1
    ldr x1, tcr
    msr tcr_el1, x1
    ldr x1, boot_table_address          // the same table twice: the lower half maps memory to itself for now
    msr ttbr0_el1, x1
    msr ttbr1_el1, x1
    dsb ishst
    tlbi vmalle1
    dsb nsh
    ic iallu
    dsb nsh
    isb
    mrs x1, sctlr_el1
    ldr x2, sctlr_set
    orr x1, x1, x2
    ldr x2, sctlr_clear
    bic x1, x1, x2
    msr sctlr_el1, x1
    isb
    ldr x1, upper
    br x1

.balign 8
mair: .quad 0x00ff4400                  // 0: device nGnRnE, 1: normal, not cached, 2: write-back
tcr: .quad 16 | 1 << 8 | 1 << 10 | 3 << 12 | 16 << 16 | 1 << 24 | 1 << 26 | 3 << 28 | 2 << 30 | 2 << 32
                                        // 48 bits in both halves, walks cacheable and shareable, 4 KiB, 40-bit physical
sctlr_set: .quad 1 | 1 << 2 | 1 << 12 | 1 << 23 // M, C, I, SPAN
sctlr_clear: .quad 1 << 1 | 1 << 19 | 1 << 25   // A, WXN, EE
boot_table_address: .quad BOOT_L0 - 0xffff000000000000
upper: .quad upper_start

.section .rodata.secondary_entry, "a"
.balign 8
.global SECONDARY_ENTRY
SECONDARY_ENTRY: .quad _secondary_start

.section .text.upper, "ax"
upper_start:
    adrp x1, VECTORS
    add x1, x1, :lo12:VECTORS
    msr vbar_el1, x1
    adrp x1, BOOT_STACKS
    add x1, x1, :lo12:BOOT_STACKS
    add x2, x19, #1
    add x1, x1, x2, lsl #16             // 64 KiB each
    mov sp, x1
    msr tpidr_el1, x19
    cbnz x19, 4f
    adrp x1, __bss_start                // QEMU's loader clears it; others may not
    add x1, x1, :lo12:__bss_start
    adrp x2, __bss_end
    add x2, x2, :lo12:__bss_end
3:  cmp x1, x2
    b.hs 4f
    stp xzr, xzr, [x1], #16
    b 3b
4:  mov x29, xzr
    mov x30, xzr
    mov x0, x19
    bl aarch64_enter
5:  wfi
    b 5b

.section .data.boot_tables, "aw"
.balign 4096
.global BOOT_L0
BOOT_L0:
    .quad BOOT_L1 - 0xffff000000000000 + 3
    .fill 511, 8, 0
