// SPDX-License-Identifier: GPL-2.0
/*
 * The first retransmission timeout of every TCP connection of one cgroup: that of its SYN, its SYN-ACK, and whatever
 * is sent before a round trip is measured. The kernel's is a second (RFC 6298, section 2.1), which no parameter
 * changes.
 */
#include "../cc/bpf/kernel.h"
#include "sock_ops.h"

/* Filled by the loader, in the kernel's ticks. Volatile, or the compiler would take it for what is here. */
const volatile __u32 first_timeout_ticks SEC(".rodata.lf") = 0;

SEC("sockops")
int first_timeout(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_TIMEOUT_INIT)
		ops->reply = first_timeout_ticks;
	return 1;
}

char LICENSE[] SEC("license") = "GPL";
