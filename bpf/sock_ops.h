/* SPDX-License-Identifier: GPL-2.0 */
/* What a program of sock_ops sees of a TCP socket. Layout and numbers are kernel ABI (linux/bpf.h). */
#ifndef LONGFAT_SOCK_OPS_H
#define LONGFAT_SOCK_OPS_H

#include "../cc/bpf/kernel.h"

#define SOL_TCP 6

enum {
	BPF_SOCK_OPS_TIMEOUT_INIT = 1,
	BPF_SOCK_OPS_RWND_INIT = 2,
	BPF_SOCK_OPS_TCP_CONNECT_CB = 3,
	BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB = 4,
	BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB = 5,
	BPF_SOCK_OPS_TCP_LISTEN_CB = 11,
	BPF_SOCK_OPS_HDR_OPT_LEN_CB = 14,
};

enum { BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG = 1 << 6 };

struct bpf_sock;

struct bpf_sock_ops {
	__u32 op;
	__u32 reply;
	__u32 more_args[3];
	__u32 family;
	__u32 remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port;
	__u32 is_fullsock;
	__u32 snd_cwnd, srtt_us;
	__u32 bpf_sock_ops_cb_flags;
	__u32 state, rtt_min, snd_ssthresh, rcv_nxt, snd_nxt, snd_una, mss_cache, ecn_flags, rate_delivered, rate_interval_us;
	__u32 packets_out, retrans_out, total_retrans, segs_in, data_segs_in, segs_out, data_segs_out, lost_out, sacked_out;
	__u32 sk_txhash;
	__u64 bytes_received, bytes_acked;
	struct bpf_sock *sk;
};

#endif
