/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The few fields of the kernel's structures that congestion control needs. Offsets are those of the running kernel
 * (BPF CO-RE), so only names and types matter here.
 */
#ifndef LONGFAT_KERNEL_H
#define LONGFAT_KERNEL_H

typedef __UINT8_TYPE__ __u8;
typedef __UINT16_TYPE__ __u16;
typedef __UINT32_TYPE__ __u32;
typedef __UINT64_TYPE__ __u64;
typedef __INT32_TYPE__ __s32;
typedef __INT64_TYPE__ __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

/* Used by bpf_helpers.h. */
enum bpf_map_type { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_LRU_HASH = 9, BPF_MAP_TYPE_SK_STORAGE = 24, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_F_NO_PREALLOC = 1, BPF_F_MMAPABLE = 1 << 10, BPF_SK_STORAGE_GET_F_CREATE = 1 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define BPF_RB_NO_WAKEUP 1

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* A part of sock_common: other programs declare other parts of it. */
struct sock_common___cc {
	__u16 skc_family;
};

struct sock {
	struct sock_common___cc __sk_common;
	unsigned long sk_pacing_rate; /* bytes per second; all ones: no limit */
	__u32 sk_pacing_status;
	__u8 sk_pacing_shift;
	__u16 sk_gso_max_segs;
};

/* sk_pacing_status: TCP paces by itself unless a qdisc does. */
enum { SK_PACING_NONE = 0, SK_PACING_NEEDED = 1 };
#define AF_INET6 10
struct rate_sample;

struct inet_connection_sock {
	__u8 icsk_ca_state : 5;
	__u64 icsk_ca_priv[13];
};

struct minmax_sample {
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u16 tcp_header_len;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq; /* end of what the application has written */
	__u64 tcp_mstamp; /* us, of the packet being processed */
	__u32 snd_cwnd;
	__u32 snd_cwnd_cnt;
	__u32 snd_ssthresh;
	__u32 snd_cwnd_clamp;
	__u32 prior_cwnd;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 sacked_out;
	__u32 lost_out;
	__u32 max_packets_out;
	__u32 mss_cache;
	__u32 srtt_us; /* eight times the smoothed round-trip time */
	struct minmax rtt_min;
	__u8 is_cwnd_limited : 1;
};

struct ack_sample {
	__s32 rtt_us; /* of the segment sent last among those acknowledged; negative: not measured */
};

enum tcp_ca_event { CA_EVENT_TX_START = 0 };

/* Members that are not set here are left empty. */
struct tcp_congestion_ops {
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*cwnd_event_tx_start)(struct sock *sk); /* since Linux 7.3, and no event then */
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	void (*in_ack_event)(struct sock *sk, __u32 flags);
	__u32 (*min_tso_segs)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cong_control)(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs);
	__u32 (*sndbuf_expand)(struct sock *sk);
	__u32 flags;
	__u32 (*ssthresh)(struct sock *sk);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	char name[16];
};

#pragma clang attribute pop

#endif
