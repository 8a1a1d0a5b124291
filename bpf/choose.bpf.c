// SPDX-License-Identifier: GPL-2.0
/*
 * Chooses the congestion control of every TCP socket of one cgroup, so that unmodified programs run under it.
 *
 * A socket that connects gets it before its SYN: one that started under BBR would keep the kernel's pacing. A listener
 * gets it so that its connections inherit it. Once established it is set again, because a route may have overridden
 * it (ip route ... congctl). What the program itself asks for is swallowed: it is told it succeeded.
 */
#include "../cc/bpf/kernel.h"
#include "sock_ops.h"

#define TCP_CONGESTION 13
#define CC_NAME_BYTES 16

struct bpf_sockopt {
	__u64 sk;
	__u64 optval;
	__u64 optval_end;
	__s32 level;
	__s32 optname;
	__s32 optlen;
	__s32 retval;
};

/* Filled by the loader: a name with its terminator. Volatile, or the compiler would take it for what is here. */
const volatile char cc_name[CC_NAME_BYTES] SEC(".rodata.lf") = "";

/* Sockets that did not take it; read by the loader. */
__u64 refused SEC(".bss.lf");

SEC("sockops")
int choose(struct bpf_sock_ops *ops)
{
	char name[CC_NAME_BYTES];
	int at;

	switch (ops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		for (at = 0; at < CC_NAME_BYTES; at++)
			name[at] = cc_name[at];
		if (bpf_setsockopt(ops, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
			__sync_fetch_and_add(&refused, 1);
	}
	return 1;
}

SEC("cgroup/setsockopt")
int swallow(struct bpf_sockopt *option)
{
	/* -1: the kernel's own handler is not run, and the call succeeds. */
	if (option->level == SOL_TCP && option->optname == TCP_CONGESTION)
		option->optlen = -1;
	else if (option->optlen > 4096)
		/* Longer than the page the kernel shows us: 0 passes the original through. */
		option->optlen = 0;
	return 1;
}

char LICENSE[] SEC("license") = "GPL";
