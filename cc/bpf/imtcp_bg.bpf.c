// SPDX-License-Identifier: GPL-2.0
#define LF_MEASURES
#include "../algorithms/imtcp_bg.h"
#include "struct_ops.h"

LF_STRUCT_OPS(imtcp_bg, LF_IMTCP_BG_TUNABLES, LF_IMTCP_BG_OPTIONAL);
