/* Answers as libnvidia-ml.so.1 does, for two cards: an A10, and an H100 that is cut into two MIG slices.
 *
 * FAKE_NVML holds what is odd today, words separated by commas:
 *   unified    the A10 has no memory of its own (NotSupported, as on GB10)
 *   other      the process list is in the struct of another driver version (32 bytes an entry, as 535.43)
 *   zero       our process is listed with 0 bytes
 *   lost       the A10 has fallen off the bus
 *   xid        the A10 reports Xid 79 once
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct card { const char *name, *uuid; u64 total, used; int is_slice; unsigned gi, ci; } card;
typedef struct { u64 total, free, used; } memory;
typedef struct { unsigned pid; u64 used; unsigned gi, ci; } process;
typedef struct { unsigned pid; u64 used; unsigned gi, ci; u64 protected_; } wide_process;
typedef struct { card *device; u64 type, data; unsigned gi, ci; } event;

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT = 7, TIMEOUT = 10, LOST = 15 };
#define MIB (1ULL << 20)

static card cards[] = {
    {"NVIDIA A10", "GPU-a1000000-0000-4000-8000-000000000001", 23028 * MIB, 301 * MIB, 0, 0, 0},
    {"NVIDIA H100 80GB HBM3", "GPU-b2000000-0000-4000-8000-000000000002", 81559 * MIB, 900 * MIB, 0, 0, 0},
};
static card slices[] = {
    {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG-c3000000-0000-4000-8000-000000000003", 40448 * MIB, 37 * MIB, 1, 1, 0},
    {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG-d4000000-0000-4000-8000-000000000004", 40448 * MIB, 37 * MIB, 1, 2, 0},
};
static int xids_told;

static int odd(const char *word) {
    const char *said = getenv("FAKE_NVML");
    return said != NULL && strstr(said, word) != NULL;
}

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case LOST: return "GPU is lost";
    case TIMEOUT: return "Timeout";
    default: return "Invalid Argument";
    }
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, card **device) {
    if (index >= 2) return INVALID;
    *device = &cards[index];
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, card **device) {
    for (int i = 0; i < 2; i++) {
        if (strcmp(uuid, cards[i].uuid) == 0) { *device = &cards[i]; return OK; }
        if (strcmp(uuid, slices[i].uuid) == 0) { *device = &slices[i]; return OK; }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, card **device) {
    if (strstr(id, "17:00.0") == NULL) return NOT_FOUND;
    *device = &cards[0];
    return OK;
}
static int text(const char *from, char *to, unsigned length) {
    snprintf(to, length, "%s", from);
    return OK;
}
int nvmlDeviceGetName(card *device, char *name, unsigned length) { return text(device->name, name, length); }
int nvmlDeviceGetUUID(card *device, char *uuid, unsigned length) { return text(device->uuid, uuid, length); }
int nvmlDeviceGetMemoryInfo(card *device, memory *found) {
    if (device == &cards[0] && odd("unified")) return NOT_SUPPORTED;
    if (device == &cards[0] && odd("lost")) return LOST;
    *found = (memory){device->total, device->total - device->used, device->used};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(card *device, unsigned *count, void *found) {
    unsigned room = *count;
    *count = device == &cards[1] ? 0 : 2;
    if (*count == 0) return OK;
    if (room < *count || found == NULL) return INSUFFICIENT;
    u64 ours = odd("zero") ? 0 : 200 * MIB;
    unsigned us = (unsigned)getpid();
    if (odd("other")) {
        wide_process told[] = {{1, 50 * MIB, ~0u, ~0u, 0}, {us, ours, ~0u, ~0u, 0}};
        memcpy(found, told, sizeof told);
    } else {
        process told[] = {{1, 50 * MIB, ~0u, ~0u}, {us, ours, ~0u, ~0u}};
        memcpy(found, told, sizeof told);
    }
    return OK;
}
int nvmlDeviceGetTemperature(card *device, int sensor, unsigned *degrees) {
    if (device->is_slice) return NOT_SUPPORTED;
    *degrees = 41;
    return OK;
}
int nvmlDeviceGetUtilizationRates(card *device, unsigned *rates) {
    if (device != &cards[0]) return NOT_SUPPORTED; /* MIG tells no load */
    rates[0] = 7; rates[1] = 3;
    return OK;
}
int nvmlDeviceGetMigMode(card *device, unsigned *now, unsigned *pending) {
    if (device != &cards[1]) return NOT_SUPPORTED;
    *now = *pending = 1;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(card *device, unsigned *count) { *count = device == &cards[1] ? 7 : 0; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(card *device, unsigned index, card **slice) {
    if (device != &cards[1] || index >= 2) return NOT_FOUND;
    *slice = &slices[index];
    return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(card *slice, card **device) {
    if (!slice->is_slice) return INVALID;
    *device = &cards[1];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(card *slice, unsigned *id) { *id = slice->gi; return OK; }
int nvmlDeviceGetComputeInstanceId(card *slice, unsigned *id) { *id = slice->ci; return OK; }
int nvmlDeviceGetDriverModel(card *device, unsigned *now, unsigned *pending) { return NOT_SUPPORTED; }
int nvmlDeviceGetTotalEccErrors(card *device, int type, int counter, u64 *count) { *count = 0; return OK; }
int nvmlDeviceGetRemappedRows(card *device, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    *a = *b = *c = *d = 0;
    return OK;
}
int nvmlEventSetCreate(void **set) { *set = &xids_told; return OK; }
int nvmlDeviceRegisterEvents(card *device, u64 types, void *set) { return OK; }
int nvmlEventSetWait_v2(void *set, event *found, unsigned milliseconds) {
    if (!odd("xid") || xids_told++) return TIMEOUT;
    *found = (event){&cards[0], 8, 79, 0, 0};
    return OK;
}
