/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* queue/ compiled natively, with external names, for the Rust side. */
#include <stddef.h>

#include "queue/queue.h"
#include "queue/window.h"

lf_u32 lf_native_queue_on_packet(const struct lf_queue_view *v, struct lf_queue_state *s,
				 const struct lf_queue_settings *t);
lf_u32 lf_native_queue_on_packet(const struct lf_queue_view *v, struct lf_queue_state *s,
				 const struct lf_queue_settings *t)
{
	return lf_queue_on_packet(v, s, t);
}

void lf_native_queue_marked(const struct lf_queue_view *v, struct lf_queue_state *s, const struct lf_queue_settings *t);
void lf_native_queue_marked(const struct lf_queue_view *v, struct lf_queue_state *s, const struct lf_queue_settings *t)
{
	lf_queue_marked(v, s, t);
}

void lf_native_window_update(const struct lf_queue_view *v, struct lf_window_state *s, lf_u32 target_us,
			     struct lf_window *out);
void lf_native_window_update(const struct lf_queue_view *v, struct lf_window_state *s, lf_u32 target_us,
			     struct lf_window *out)
{
	lf_window_update(v, s, target_us, out);
}

/* Layout of what crosses the language border, compared with the Rust mirror by a test: sizes, then some offsets. */
const lf_u32 lf_queue_layout[] = {
	sizeof(struct lf_queue_view), sizeof(struct lf_queue_settings), sizeof(struct lf_queue_state),
	sizeof(struct lf_window_state), sizeof(struct lf_window),
	offsetof(struct lf_queue_view, random), offsetof(struct lf_queue_settings, red_bytes),
	offsetof(struct lf_queue_state, marks), offsetof(struct lf_queue_state, pi_probability),
	offsetof(struct lf_window_state, delay_us),
};
