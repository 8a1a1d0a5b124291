// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's own BBR under another name, with an init() that takes over a connection's model of its path (struct
 * bbr) instead of beginning anew.
 */
#include "../cc/bpf/saved.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct rate_sample {
	int losses;
};
#pragma clang attribute pop

extern void bbr_init(struct sock *sk) __ksym;
extern void bbr_main(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs) __ksym;
extern __u32 bbr_sndbuf_expand(struct sock *sk) __ksym;
extern __u32 bbr_undo_cwnd(struct sock *sk) __ksym;
/* A kernel has one of these; the loader leaves out what calls the other. */
extern void bbr_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym __weak;
extern void bbr_cwnd_event_tx_start(struct sock *sk) __ksym __weak;
extern __u32 bbr_ssthresh(struct sock *sk) __ksym;
extern __u32 bbr_min_tso_segs(struct sock *sk) __ksym;
extern void bbr_set_state(struct sock *sk, __u8 new_state) __ksym;

SEC("struct_ops")
void BPF_PROG(keep_init, struct sock *sk)
{
	/* It sets ssthresh to infinity, as the connection's was or BBR would have made it; a saved one follows. */
	bbr_init(sk);
	lf_restore(sk);
}

SEC("struct_ops")
void BPF_PROG(keep_main, struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs)
{
	bbr_main(sk, ack, flag, rs);
}

SEC("struct_ops")
__u32 BPF_PROG(keep_sndbuf_expand, struct sock *sk)
{
	return bbr_sndbuf_expand(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(keep_undo_cwnd, struct sock *sk)
{
	return bbr_undo_cwnd(sk);
}

SEC("struct_ops")
void BPF_PROG(keep_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	bbr_cwnd_event(sk, event);
}

SEC("struct_ops")
void BPF_PROG(keep_cwnd_event_tx_start, struct sock *sk)
{
	bbr_cwnd_event_tx_start(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(keep_ssthresh, struct sock *sk)
{
	return bbr_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(keep_min_tso_segs, struct sock *sk)
{
	return bbr_min_tso_segs(sk);
}

SEC("struct_ops")
void BPF_PROG(keep_set_state, struct sock *sk, __u8 new_state)
{
	bbr_set_state(sk, new_state);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops lfkeep = {
	.init = (void *)keep_init,
	.cong_control = (void *)keep_main,
	.sndbuf_expand = (void *)keep_sndbuf_expand,
	.undo_cwnd = (void *)keep_undo_cwnd,
	.cwnd_event = (void *)keep_cwnd_event,
	.cwnd_event_tx_start = (void *)keep_cwnd_event_tx_start,
	.ssthresh = (void *)keep_ssthresh,
	.min_tso_segs = (void *)keep_min_tso_segs,
	.set_state = (void *)keep_set_state,
	.name = "lfkeep_bbr",
	.flags = 1, /* TCP_CONG_NON_RESTRICTED, as BBR's own */
};

char LICENSE[] SEC("license") = "GPL";
