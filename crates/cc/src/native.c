/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * cc/ compiled natively: one table of algorithms, for the Rust side to walk. State and tunables become void *, the
 * rest is the contract as it stands.
 */
#include <stddef.h>

#include "algorithms/bic.h"
#include "algorithms/cubic.h"
#include "algorithms/highspeed.h"
#include "algorithms/imtcp.h"
#include "algorithms/imtcp_bg.h"
#include "algorithms/ledbat.h"
#include "algorithms/reno.h"
#include "algorithms/scalable.h"
#include "algorithms/tcp_lp.h"
#include "algorithms/vegas.h"
#include "include/record.h"

struct lf_tunable {
	const char *name;
	const char *about;
	lf_u32 value, least, greatest;
};

struct lf_algorithm {
	const char *name;
	const struct lf_tunable *tunables;
	lf_u32 tunable_count;
	void (*init)(struct lf_conn *, void *, const void *);
	void (*on_ack)(struct lf_conn *, void *, const void *, const struct lf_ack *);
	lf_u32 (*ssthresh)(struct lf_conn *, void *, const void *);
	lf_u32 (*undo_cwnd)(struct lf_conn *, void *, const void *);
	/* NULL where the algorithm has none. */
	void (*on_rtt_sample)(struct lf_conn *, void *, const void *, lf_u32);
	void (*on_restart)(struct lf_conn *, void *, const void *);
	lf_u32 (*on_send)(struct lf_conn *, void *, const void *, struct lf_sending *);
	void (*on_ack_seen)(struct lf_conn *, void *, const void *, const struct lf_sending *);
};

#define TUNABLE(field, value, least, greatest, about) { #field, about, value, least, greatest },
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define OPTIONAL_FUNCTION(name, function) OPTIONAL_##function(name)
#define OPTIONAL_on_rtt_sample(name) \
	static void name##_on_rtt_sample(struct lf_conn *c, void *s, const void *t, lf_u32 rtt_us) \
	{ \
		lf_##name##_on_rtt_sample(c, s, t, rtt_us); \
	}
#define OPTIONAL_on_restart(name) \
	static void name##_on_restart(struct lf_conn *c, void *s, const void *t) { lf_##name##_on_restart(c, s, t); }
#define OPTIONAL_on_send(name) \
	static lf_u32 name##_on_send(struct lf_conn *c, void *s, const void *t, struct lf_sending *send) \
	{ \
		return lf_##name##_on_send(c, s, t, send); \
	}
#define OPTIONAL_on_ack_seen(name) \
	static void name##_on_ack_seen(struct lf_conn *c, void *s, const void *t, const struct lf_sending *send) \
	{ \
		lf_##name##_on_ack_seen(c, s, t, send); \
	}

#define NATIVE(name, TUNABLES, OPTIONAL) \
	OPTIONAL(OPTIONAL_FUNCTION) \
	static const struct lf_tunable name##_tunables[] = { TUNABLES(TUNABLE) }; \
	static void name##_init(struct lf_conn *c, void *s, const void *t) { lf_##name##_init(c, s, t); } \
	static void name##_on_ack(struct lf_conn *c, void *s, const void *t, const struct lf_ack *ack) \
	{ \
		lf_##name##_on_ack(c, s, t, ack); \
	} \
	static lf_u32 name##_ssthresh(struct lf_conn *c, void *s, const void *t) \
	{ \
		return lf_##name##_ssthresh(c, s, t); \
	} \
	static lf_u32 name##_undo_cwnd(struct lf_conn *c, void *s, const void *t) \
	{ \
		return lf_##name##_undo_cwnd(c, s, t); \
	}

#define MEMBER(name, function) .function = name##_##function,

#define ENTRY(cc, OPTIONAL) \
	{ .name = #cc, .tunables = cc##_tunables, .tunable_count = COUNT(cc##_tunables), .init = cc##_init, \
	  .on_ack = cc##_on_ack, .ssthresh = cc##_ssthresh, .undo_cwnd = cc##_undo_cwnd, OPTIONAL(MEMBER) },

NATIVE(reno, LF_RENO_TUNABLES, LF_NO_OPTIONAL)
NATIVE(highspeed, LF_HIGHSPEED_TUNABLES, LF_NO_OPTIONAL)
NATIVE(scalable, LF_SCALABLE_TUNABLES, LF_NO_OPTIONAL)
NATIVE(bic, LF_BIC_TUNABLES, LF_NO_OPTIONAL)
NATIVE(vegas, LF_VEGAS_TUNABLES, LF_VEGAS_OPTIONAL)
NATIVE(cubic, LF_CUBIC_TUNABLES, LF_CUBIC_OPTIONAL)
NATIVE(imtcp, LF_IMTCP_TUNABLES, LF_IMTCP_OPTIONAL)
NATIVE(imtcp_bg, LF_IMTCP_BG_TUNABLES, LF_IMTCP_BG_OPTIONAL)
NATIVE(ledbat, LF_LEDBAT_TUNABLES, LF_LEDBAT_OPTIONAL)
NATIVE(tcp_lp, LF_TCP_LP_TUNABLES, LF_TCP_LP_OPTIONAL)

const struct lf_algorithm lf_algorithms[] = {
	ENTRY(reno, LF_NO_OPTIONAL)
	ENTRY(highspeed, LF_NO_OPTIONAL)
	ENTRY(scalable, LF_NO_OPTIONAL)
	ENTRY(bic, LF_NO_OPTIONAL)
	ENTRY(vegas, LF_VEGAS_OPTIONAL)
	ENTRY(cubic, LF_CUBIC_OPTIONAL)
	ENTRY(imtcp, LF_IMTCP_OPTIONAL)
	ENTRY(imtcp_bg, LF_IMTCP_BG_OPTIONAL)
	ENTRY(ledbat, LF_LEDBAT_OPTIONAL)
	ENTRY(tcp_lp, LF_TCP_LP_OPTIONAL)
};
const lf_u32 lf_algorithm_count = COUNT(lf_algorithms);

/* Layout of what crosses the language border, compared with the Rust mirror by a test. */
struct lf_field {
	const char *name;
	lf_u32 offset;
};
#define FIELD(type, field) { #field, offsetof(struct type, field) },

const struct lf_field lf_conn_fields[] = {
	FIELD(lf_conn, now_us) FIELD(lf_conn, cwnd_segments) FIELD(lf_conn, cwnd_credit_segments)
	FIELD(lf_conn, ssthresh_segments) FIELD(lf_conn, cwnd_clamp_segments) FIELD(lf_conn, prior_cwnd_segments)
	FIELD(lf_conn, flight_segments) FIELD(lf_conn, max_flight_segments) FIELD(lf_conn, is_cwnd_limited)
	FIELD(lf_conn, ca_state) FIELD(lf_conn, mss_bytes) FIELD(lf_conn, srtt_us) FIELD(lf_conn, min_rtt_us)
};
const struct lf_field lf_record_fields[] = {
	FIELD(lf_record, conn_id) FIELD(lf_record, op) FIELD(lf_record, result) FIELD(lf_record, ack) FIELD(lf_record, rtt_us)
	FIELD(lf_record, before) FIELD(lf_record, after) FIELD(lf_record, sending_before)
	FIELD(lf_record, sending_after) FIELD(lf_record, state_before) FIELD(lf_record, state_after)
};
const struct lf_field lf_sending_fields[] = {
	FIELD(lf_sending, pacing_bytes_per_s) FIELD(lf_sending, next_seq) FIELD(lf_sending, una_seq)
	FIELD(lf_sending, unsent_bytes) FIELD(lf_sending, packet_bytes) FIELD(lf_sending, burst_segments)
	FIELD(lf_sending, repair_segments)
};
const struct lf_field lf_avail_fields[] = {
	FIELD(lf_avail, at_us) FIELD(lf_avail, avail_kbps) FIELD(lf_avail, deviation_kbps)
	FIELD(lf_avail, capacity_kbps) FIELD(lf_avail, confidence_permille) FIELD(lf_avail, results)
	FIELD(lf_avail, rejected)
};
/* Arithmetic that algorithms share, for tests of its own. */
lf_u32 lf_native_cube_root(lf_u64 x);
lf_u32 lf_native_cube_root(lf_u64 x)
{
	return lf_cube_root(x);
}
lf_u32 lf_native_square_root(lf_u64 x);
lf_u32 lf_native_square_root(lf_u64 x)
{
	return lf_square_root(x);
}

const lf_u32 lf_conn_bytes = sizeof(struct lf_conn);
const lf_u32 lf_record_bytes = sizeof(struct lf_record);
