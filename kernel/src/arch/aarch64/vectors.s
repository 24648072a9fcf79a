// Exception vectors, and the accesses that may fault: see trap.rs.

// The stack must be one of `BOOT_STACKS` with room for all registers: 64 of 64 KiB, 4 MiB in all. There is no other register to
// ask with, so x0 and x1 wait in two thread registers that nothing uses below EL1.
.macro vector handler
.balign 128
    msr tpidr_el0, x0
    msr tpidrro_el0, x1
    sub x0, sp, #800
    adrp x1, BOOT_STACKS                // page-aligned
    sub x0, x0, x1
    lsr x0, x0, #22
    cbnz x0, stack_gone
    mrs x1, tpidrro_el0
    mrs x0, tpidr_el0
    sub sp, sp, #800
    stp x0, x1, [sp, #0]
    mov x0, #\handler
    b exception
.endm

.section .vectors, "ax"
.balign 2048
.global VECTORS
VECTORS:
    vector 0                            // with SP_EL0, which this image does not use
    vector 0
    vector 0
    vector 0
    vector 1                            // synchronous
    vector 2                            // IRQ
    vector 0                            // FIQ
    vector 0                            // SError
    vector 0                            // from EL0: there is none
    vector 0
    vector 0
    vector 0
    vector 0
    vector 0
    vector 0
    vector 0

// The stack is gone, and with it what was to be saved: only what happened can be told, on a stack for that alone.
stack_gone:
    mov x0, sp
    adrp x1, EMERGENCY_STACK
    add x1, x1, :lo12:EMERGENCY_STACK
    add x1, x1, #0x2000                 // as in trap.rs
    mov sp, x1
    bl aarch64_stack_gone
    b .

// x0: the kind; x0 and x1 saved. All registers are saved, so that the handler sees and may change them.
exception:
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    mrs x1, elr_el1
    stp x30, x1, [sp, #240]
    mrs x1, spsr_el1
    mrs x2, fpsr
    stp x1, x2, [sp, #256]
    mrs x1, fpcr
    str x1, [sp, #272]
    stp q0, q1, [sp, #288]
    stp q2, q3, [sp, #320]
    stp q4, q5, [sp, #352]
    stp q6, q7, [sp, #384]
    stp q8, q9, [sp, #672]
    stp q10, q11, [sp, #704]
    stp q12, q13, [sp, #736]
    stp q14, q15, [sp, #768]
    stp q16, q17, [sp, #416]
    stp q18, q19, [sp, #448]
    stp q20, q21, [sp, #480]
    stp q22, q23, [sp, #512]
    stp q24, q25, [sp, #544]
    stp q26, q27, [sp, #576]
    stp q28, q29, [sp, #608]
    stp q30, q31, [sp, #640]
    mov x1, sp
    bl aarch64_exception
    ldp q30, q31, [sp, #640]
    ldp q28, q29, [sp, #608]
    ldp q26, q27, [sp, #576]
    ldp q24, q25, [sp, #544]
    ldp q22, q23, [sp, #512]
    ldp q20, q21, [sp, #480]
    ldp q18, q19, [sp, #448]
    ldp q16, q17, [sp, #416]
    ldp q14, q15, [sp, #768]
    ldp q12, q13, [sp, #736]
    ldp q10, q11, [sp, #704]
    ldp q8, q9, [sp, #672]
    ldp q6, q7, [sp, #384]
    ldp q4, q5, [sp, #352]
    ldp q2, q3, [sp, #320]
    ldp q0, q1, [sp, #288]
    ldr x1, [sp, #272]
    msr fpcr, x1
    ldp x1, x2, [sp, #256]
    msr spsr_el1, x1
    msr fpsr, x2
    ldp x30, x1, [sp, #240]
    msr elr_el1, x1
    ldp x28, x29, [sp, #224]
    ldp x26, x27, [sp, #208]
    ldp x24, x25, [sp, #192]
    ldp x22, x23, [sp, #176]
    ldp x20, x21, [sp, #160]
    ldp x18, x19, [sp, #144]
    ldp x16, x17, [sp, #128]
    ldp x14, x15, [sp, #112]
    ldp x12, x13, [sp, #96]
    ldp x10, x11, [sp, #80]
    ldp x8, x9, [sp, #64]
    ldp x6, x7, [sp, #48]
    ldp x4, x5, [sp, #32]
    ldp x2, x3, [sp, #16]
    ldp x0, x1, [sp, #0]
    add sp, sp, #800
    eret

// Accesses that may fault. Each answers x0 = what was read and x1 = 0, or x1 = ESR_EL1 when it faulted.
.section .text.attempt, "ax"
.global attempt_load, attempt_load_at, attempt_store, attempt_store_at, attempt_call, attempt_call_return
attempt_load:                           // (address)
    mov x1, xzr
attempt_load_at:
    ldr x0, [x0]
    ret
attempt_store:                          // (address, value)
    mov x2, x1
    mov x1, xzr
attempt_store_at:
    str x2, [x0]
    ret
attempt_call:                           // (address of a function without arguments that touches x0 only)
    stp x30, xzr, [sp, #-16]!
    mov x1, xzr
    blr x0
attempt_call_return:
    ldp x30, xzr, [sp], #16
    ret
