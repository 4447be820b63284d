// A management library for tests. It knows what a state file says, which is
// read anew on every call, so that a test changes the machine under a running
// reader. The file is named by FAKE_NVML_STATE; a missing one is a machine
// without a driver. One statement a line:
//
//   init CODE                      what nvmlInit answers
//   count N                        what the count says, if not all
//   counterr CODE                  or that it fails
//   gpu IDX UUID TOTAL USED UTIL   a device; UUID of at most 79 characters
//   na IDX WHAT                    NOT_SUPPORTED, with zeros: memory util power temp procs
//   lost IDX                       every call for it answers GPU_IS_LOST
//   hide IDX                       it is not listed; indexes above move down
//   proc IDX PID BYTES             a compute process; -1 bytes: not available
//   mig IDX SLOT UUID TOTAL USED   an instance; sets MIG mode
//   link IDX LINK BUS              an active NVLink to PCI bus BUS (GPU i is bus i+1)
//   topo I J LEVEL                 common ancestor; SYSTEM (50) if not given
//   xid SEQ IDX CODE               an event; delivered once, in the order of SEQ
//
// Compiled with OLD it has only the first version of each call and few of
// them; with NO_PROCS_V3, NO_EVENTS or NO_INIT it lacks just those.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9, TIMEOUT = 10, LOST = 15 };
enum { NA_MEMORY = 1, NA_UTIL = 2, NA_POWER = 4, NA_TEMP = 8, NA_PROCS = 16 };
enum { MAXG = 16, MAXM = 8, MAXL = 36, MAXP = 64, MAXX = 64 };
typedef unsigned long long u64;

typedef struct { int gpu, slot; } thing; // slot -1: the GPU itself
static thing things[MAXG][MAXM + 1];

typedef struct { char uuid[80]; u64 total, used; int there; } unit;
typedef struct {
	unit self, mig[MAXM];
	unsigned util, na;
	int isMig, lost, hidden, link[MAXL];
} gpu;
typedef struct {
	int init, count, counterr, n, np, nx;
	gpu g[MAXG];
	int topo[MAXG][MAXG];
	struct { int gpu; unsigned pid; long long bytes; } p[MAXP];
	struct { int seq, gpu; unsigned code; } x[MAXX];
} state;

static int bounded(int v, int max) { return v >= 0 && v < max; }

static void statement(state *s, const char *l) {
	int a, b, c; unsigned u; u64 t, m; long long sb; char w[80];
	if (sscanf(l, "init %d", &a) == 1) s->init = a;
	else if (sscanf(l, "count %d", &a) == 1) s->count = a;
	else if (sscanf(l, "counterr %d", &a) == 1) s->counterr = a;
	else if (sscanf(l, "gpu %d %79s %llu %llu %u", &a, w, &t, &m, &u) == 5 && bounded(a, MAXG)) {
		gpu *g = &s->g[a];
		strcpy(g->self.uuid, w); g->self.total = t; g->self.used = m; g->self.there = 1; g->util = u;
		if (a >= s->n) s->n = a + 1;
	} else if (sscanf(l, "na %d %79s", &a, w) == 2 && bounded(a, MAXG)) {
		s->g[a].na |= !strcmp(w, "memory") ? NA_MEMORY : !strcmp(w, "util") ? NA_UTIL : !strcmp(w, "power") ? NA_POWER : !strcmp(w, "temp") ? NA_TEMP : NA_PROCS;
	} else if (sscanf(l, "lost %d", &a) == 1 && bounded(a, MAXG)) s->g[a].lost = 1;
	else if (sscanf(l, "hide %d", &a) == 1 && bounded(a, MAXG)) s->g[a].hidden = 1;
	else if (sscanf(l, "proc %d %u %lld", &a, &u, &sb) == 3 && s->np < MAXP) {
		s->p[s->np].gpu = a; s->p[s->np].pid = u; s->p[s->np++].bytes = sb;
	} else if (sscanf(l, "mig %d %d %79s %llu %llu", &a, &b, w, &t, &m) == 5 && bounded(a, MAXG) && bounded(b, MAXM)) {
		unit *i = &s->g[a].mig[b];
		s->g[a].isMig = 1; strcpy(i->uuid, w); i->total = t; i->used = m; i->there = 1;
	} else if (sscanf(l, "link %d %d %d", &a, &b, &c) == 3 && bounded(a, MAXG) && bounded(b, MAXL)) s->g[a].link[b] = c;
	else if (sscanf(l, "topo %d %d %d", &a, &b, &c) == 3 && bounded(a, MAXG) && bounded(b, MAXG)) s->topo[a][b] = s->topo[b][a] = c;
	else if (sscanf(l, "xid %d %d %u", &a, &b, &u) == 3 && bounded(b, MAXG) && s->nx < MAXX) {
		s->x[s->nx].seq = a; s->x[s->nx].gpu = b; s->x[s->nx++].code = u;
	}
}

static void load(state *s) {
	memset(s, 0, sizeof *s);
	s->count = -1;
	for (int i = 0; i < MAXG; i++) for (int j = 0; j < MAXG; j++) s->topo[i][j] = 50;
	const char *name = getenv("FAKE_NVML_STATE");
	FILE *f = name ? fopen(name, "r") : 0;
	if (!f) { s->init = NO_DRIVER; return; }
	for (char l[512]; fgets(l, sizeof l, f);) statement(s, l);
	fclose(f);
}

static int start(void) {
	state s; load(&s);
	for (int i = 0; i < MAXG; i++) for (int j = 0; j <= MAXM; j++) { things[i][j].gpu = i; things[i][j].slot = j - 1; }
	return s.init;
}

static int count(unsigned *n) {
	state s; load(&s);
	if (s.counterr) return s.counterr;
	unsigned listed = 0;
	for (int i = 0; i < s.n; i++) listed += !s.g[i].hidden;
	*n = s.count >= 0 ? (unsigned)s.count : listed;
	return OK;
}

static int handle(unsigned index, thing **out) {
	state s; load(&s);
	for (int i = 0; i < s.n; i++) {
		if (s.g[i].hidden || index--) continue;
		if (s.g[i].lost) return LOST;
		*out = &things[i][0];
		return OK;
	}
	return INVALID;
}

#define OF(t) state s; load(&s); gpu *g = &s.g[(t)->gpu]; unit *u = (t)->slot < 0 ? &g->self : &g->mig[(t)->slot]; if (g->lost || !u->there) return LOST; (void)u

int nvmlDeviceGetUUID(thing *t, char *out, unsigned n) { OF(t); snprintf(out, n, "%s", u->uuid); return OK; }
typedef struct { u64 total, free, used; } memory;
int nvmlDeviceGetMemoryInfo(thing *t, memory *m) {
	OF(t);
	memset(m, 0, sizeof *m);
	if (t->slot < 0 && g->na & NA_MEMORY) return NOT_SUPPORTED;
	m->total = u->total; m->used = u->used; m->free = u->total - u->used;
	return OK;
}
#ifndef OLD
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char busId[32]; } pci;
static void address(pci *p, unsigned bus) { memset(p, 0, sizeof *p); p->bus = bus; snprintf(p->busId, sizeof p->busId, "00000000:%02X:00.0", bus); }
#endif
typedef struct { unsigned pid; u64 bytes; } proc1;
typedef struct { unsigned pid; u64 bytes; unsigned gi, ci; } proc2;

static int procs(thing *t, unsigned *n, void *out, int v1) {
	OF(t);
	unsigned cap = *n, c = 0;
	if (g->na & NA_PROCS) { *n = 0; return NOT_SUPPORTED; }
	for (int i = 0; i < s.np; i++) {
		if (s.p[i].gpu != t->gpu) continue;
		if (c < cap && out && v1) { proc1 p = { s.p[i].pid, (u64)s.p[i].bytes }; ((proc1 *)out)[c] = p; }
		if (c < cap && out && !v1) { proc2 p = { s.p[i].pid, (u64)s.p[i].bytes, 0xFFFFFFFF, 0xFFFFFFFF }; ((proc2 *)out)[c] = p; }
		c++;
	}
	*n = c;
	return c > cap ? SMALL : OK;
}

#ifdef OLD
int nvmlInit(void) { return start(); }
int nvmlDeviceGetCount(unsigned *n) { return count(n); }
int nvmlDeviceGetHandleByIndex(unsigned i, thing **t) { return handle(i, t); }
int nvmlDeviceGetComputeRunningProcesses(thing *t, unsigned *n, void *out) { return procs(t, n, out, 1); }
#else
#ifndef NO_INIT
int nvmlInit_v2(void) { return start(); }
#endif
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int r) { (void)r; return "fake"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "570.00.fake"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { return count(n); }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, thing **t) { return handle(i, t); }
int nvmlDeviceGetName(thing *t, char *out, unsigned n) { OF(t); snprintf(out, n, "Fake GPU"); return OK; }
typedef struct { unsigned version; u64 total, reserved, free, used; } memory2;
int nvmlDeviceGetMemoryInfo_v2(thing *t, memory2 *m) {
	memory v1; int r = nvmlDeviceGetMemoryInfo(t, &v1);
	m->total = v1.total; m->free = v1.free; m->used = v1.used; m->reserved = r || !v1.total ? 0 : 1000;
	return r;
}
typedef struct { unsigned gpu, memory; } rates;
int nvmlDeviceGetUtilizationRates(thing *t, rates *r) {
	OF(t); r->gpu = r->memory = 0;
	if (g->na & NA_UTIL || g->isMig) return NOT_SUPPORTED;
	r->gpu = g->util; return OK;
}
int nvmlDeviceGetPowerUsage(thing *t, unsigned *mw) { OF(t); *mw = 0; if (g->na & NA_POWER) return NOT_SUPPORTED; *mw = 300000; return OK; }
int nvmlDeviceGetTemperature(thing *t, int sensor, unsigned *c) { OF(t); (void)sensor; *c = 0; if (g->na & NA_TEMP) return NOT_SUPPORTED; *c = 55; return OK; }
#ifndef NO_PROCS_V3
int nvmlDeviceGetComputeRunningProcesses_v3(thing *t, unsigned *n, void *out) { return procs(t, n, out, 0); }
#endif
int nvmlDeviceGetComputeRunningProcesses_v2(thing *t, unsigned *n, void *out) { return procs(t, n, out, 0); }
int nvmlDeviceGetPciInfo_v3(thing *t, pci *p) { OF(t); address(p, t->gpu + 1); return OK; }
int nvmlDeviceGetMigMode(thing *t, unsigned *now, unsigned *next) { OF(t); *now = *next = g->isMig; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(thing *t, unsigned *n) { OF(t); *n = MAXM; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(thing *t, unsigned i, thing **out) {
	OF(t); if (i >= MAXM || !g->mig[i].there) return NOT_FOUND;
	*out = &things[t->gpu][i + 1]; return OK;
}
int nvmlDeviceGetGpuInstanceId(thing *t, unsigned *id) { OF(t); *id = t->slot + 1; return OK; }
int nvmlDeviceGetComputeInstanceId(thing *t, unsigned *id) { OF(t); *id = 0; return OK; }
int nvmlDeviceGetNvLinkState(thing *t, unsigned l, int *on) { OF(t); if (l >= MAXL) return INVALID; *on = g->link[l] != 0; return OK; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(thing *t, unsigned l, pci *p) { OF(t); if (l >= MAXL || !g->link[l]) return NOT_SUPPORTED; address(p, g->link[l]); return OK; }
int nvmlDeviceGetTopologyCommonAncestor(thing *a, thing *b, int *level) { state s; load(&s); *level = s.topo[a->gpu][b->gpu]; return OK; }
#ifndef NO_EVENTS
typedef struct { int seen; unsigned mask; } set;
typedef struct { thing *device; u64 type, data; unsigned gi, ci; } event;
int nvmlEventSetCreate(set **out) { *out = calloc(1, sizeof(set)); return *out ? OK : 999; }
int nvmlEventSetFree(set *e) { free(e); return OK; }
int nvmlDeviceRegisterEvents(thing *t, u64 types, set *e) { OF(t); (void)types; e->mask |= 1u << t->gpu; return OK; }
int nvmlEventSetWait_v2(set *e, event *out, unsigned ms) {
	for (unsigned waited = 0;; waited += 10) {
		state s; load(&s);
		for (int i = 0; i < s.nx; i++) {
			if (s.x[i].seq <= e->seen || !(e->mask >> s.x[i].gpu & 1)) continue;
			e->seen = s.x[i].seq;
			memset(out, 0, sizeof *out);
			out->device = &things[s.x[i].gpu][0]; out->type = 8; out->data = s.x[i].code;
			return OK;
		}
		if (waited >= ms) return TIMEOUT;
		struct timespec pause = { 0, 10000000 };
		nanosleep(&pause, 0);
	}
}
#endif
#endif
