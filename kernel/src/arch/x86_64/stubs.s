# One entry per vector, sixteen bytes apart; each leaves a `Frame` (traps.rs) on the stack and calls `trap`.
.text
.balign 16
.global trap_entries
trap_entries:
.set vector, 0
.rept 256
    .balign 16
    # Those for which the CPU pushes an error code itself (SDM 3A, table 6-1).
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21)
    .else
    push 0
    .endif
    push vector
    jmp trap_common
    .set vector, vector + 1
.endr

trap_common:
    push rax
    push rcx
    push rdx
    push rbx
    push rbp
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    cld
    mov rdi, rsp
    call {trap}
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rbp
    pop rbx
    pop rdx
    pop rcx
    pop rax
    add rsp, 16
    iretq
