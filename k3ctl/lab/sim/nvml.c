/* A stand-in for libnvidia-ml.so.1: the few NVML calls that the probe makes, answered from a machine description.
 *
 * The description is a text file (environment K3SIM_MACHINE, or /opt/k3sim/machine.txt) of lines "key value". A line
 * "gpu" begins the next GPU; keys before the first one are the system's:
 *   driver 580.95.05 | cuda 13000 | hang init | hang device
 *   gpu
 *   name, uuid, serial, bus_id | memory_bytes, memory_used_bytes | capability 9.0 | ecc 0/1 | ecc_uncorrected
 *   temperature_c | power_mw | utilisation_percent | lost 1
 * Structures and numbers are those of NVIDIA's published nvml.h, API version 13. Calls that are not here do not exist:
 * the loader's "function not found" is what a program sees with an older driver too.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  FUNCTION_NOT_FOUND = 13,
  GPU_IS_LOST = 15,
  VERSION_MISMATCH = 25,
  UNKNOWN = 999
};

enum { MOST_GPUS = 64, TEXT = 96, MEMORY_V2 = 0x02000028 };

typedef struct {
  char name[TEXT], uuid[TEXT], serial[TEXT], bus_id[TEXT];
  unsigned long long memory, used, uncorrected;
  int major, minor, lost;
  unsigned ecc, temperature, power, utilisation, index;
} gpu_t;

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilisation_t;
typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
} pci_t;

static gpu_t gpus[MOST_GPUS];
static unsigned count;
static int running, cuda, hang_device;
static char driver[TEXT];

static void hang(void) {
  for (;;) sleep(3600);
}

static void set_gpu(gpu_t *gpu, const char *key, const char *value) {
  struct { const char *key; char *place; } texts[] = {
      {"name", gpu->name}, {"uuid", gpu->uuid}, {"serial", gpu->serial}, {"bus_id", gpu->bus_id}};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (!strcmp(key, texts[i].key)) snprintf(texts[i].place, TEXT, "%s", value);
  if (!strcmp(key, "memory_bytes")) gpu->memory = strtoull(value, NULL, 10);
  if (!strcmp(key, "memory_used_bytes")) gpu->used = strtoull(value, NULL, 10);
  if (!strcmp(key, "ecc_uncorrected")) gpu->uncorrected = strtoull(value, NULL, 10);
  if (!strcmp(key, "capability")) sscanf(value, "%d.%d", &gpu->major, &gpu->minor);
  if (!strcmp(key, "ecc")) gpu->ecc = (unsigned)atoi(value);
  if (!strcmp(key, "temperature_c")) gpu->temperature = (unsigned)atoi(value);
  if (!strcmp(key, "power_mw")) gpu->power = (unsigned)atoi(value);
  if (!strcmp(key, "utilisation_percent")) gpu->utilisation = (unsigned)atoi(value);
  if (!strcmp(key, "lost")) gpu->lost = atoi(value);
}

static void set_system(const char *key, const char *value) {
  if (!strcmp(key, "driver")) snprintf(driver, sizeof driver, "%s", value);
  if (!strcmp(key, "cuda")) cuda = atoi(value);
  if (!strcmp(key, "hang") && !strcmp(value, "init")) hang();
  if (!strcmp(key, "hang") && !strcmp(value, "device")) hang_device = 1;
}

static int load(void) {
  const char *path = getenv("K3SIM_MACHINE");
  FILE *file = fopen(path && *path ? path : "/opt/k3sim/machine.txt", "r");
  char line[512];
  if (!file) return DRIVER_NOT_LOADED;
  count = 0;
  hang_device = 0;
  memset(gpus, 0, sizeof gpus);
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\r\n")] = 0;
    char *value = strchr(line, ' ');
    if (value) *value++ = 0;
    if (!strcmp(line, "gpu") && count < MOST_GPUS) {
      gpus[count].index = count;
      count++;
    } else if (value) {
      if (count) set_gpu(&gpus[count - 1], line, value);
      else set_system(line, value);
    }
  }
  fclose(file);
  return SUCCESS;
}

/* Every call on a GPU goes through here: no call before init, none on a stranger, none on a lost GPU. */
static int usable(const gpu_t *gpu) {
  if (!running) return UNINITIALIZED;
  if (gpu < gpus || gpu >= gpus + count) return INVALID_ARGUMENT;
  if (hang_device) hang();
  return gpu->lost ? GPU_IS_LOST : SUCCESS;
}

static int copy(char *to, unsigned size, const char *from) {
  if (!*from) return NOT_SUPPORTED;
  if (strlen(from) + 1 > size) return INSUFFICIENT_SIZE;
  strcpy(to, from);
  return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int result = load();
  running = result == SUCCESS;
  return result;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
  int was = running;
  running = 0;
  return was ? SUCCESS : UNINITIALIZED;
}

const char *nvmlErrorString(int result) {
  switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) { return running ? copy(text, size, driver) : UNINITIALIZED; }

int nvmlSystemGetCudaDriverVersion(int *version) {
  *version = cuda;
  return running ? SUCCESS : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

int nvmlDeviceGetCount_v2(unsigned *found) {
  *found = count;
  return running ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **handle) {
  if (!running) return UNINITIALIZED;
  if (index >= count) return INVALID_ARGUMENT;
  *handle = &gpus[index];
  return usable(*handle);
}

#define FIELD(function, type, member)            \
  int function(gpu_t *gpu, type *value) {        \
    int result = usable(gpu);                    \
    if (result == SUCCESS) *value = gpu->member; \
    return result;                               \
  }

#define WORDS(function, member)                                 \
  int function(gpu_t *gpu, char *text, unsigned size) {         \
    int result = usable(gpu);                                   \
    return result == SUCCESS ? copy(text, size, gpu->member) : result; \
  }

FIELD(nvmlDeviceGetIndex, unsigned, index)
FIELD(nvmlDeviceGetPowerUsage, unsigned, power)
WORDS(nvmlDeviceGetName, name)
WORDS(nvmlDeviceGetUUID, uuid)
WORDS(nvmlDeviceGetSerial, serial)

int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory) {
  int result = usable(gpu);
  if (result == SUCCESS) *memory = (memory_t){gpu->memory, gpu->memory - gpu->used, gpu->used};
  return result;
}

int nvmlDeviceGetMemoryInfo_v2(gpu_t *gpu, memory_v2_t *memory) {
  int result = usable(gpu);
  if (result == SUCCESS && memory->version != MEMORY_V2) return VERSION_MISMATCH;
  if (result == SUCCESS) *memory = (memory_v2_t){MEMORY_V2, gpu->memory, 0, gpu->memory - gpu->used, gpu->used};
  return result;
}

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci) {
  int result = usable(gpu);
  if (result != SUCCESS) return result;
  memset(pci, 0, sizeof *pci);
  sscanf(gpu->bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%.31s", gpu->bus_id);
  snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04x:%02x:%02x.0", pci->domain & 0xffff, pci->bus & 0xff,
           pci->device & 0xff);
  return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(gpu_t *gpu, int *major, int *minor) {
  int result = usable(gpu);
  if (result == SUCCESS) {
    *major = gpu->major;
    *minor = gpu->minor;
  }
  return result;
}

int nvmlDeviceGetEccMode(gpu_t *gpu, unsigned *current, unsigned *pending) {
  int result = usable(gpu);
  if (result == SUCCESS) *current = *pending = gpu->ecc;
  return result;
}

int nvmlDeviceGetTotalEccErrors(gpu_t *gpu, int kind, int counter, unsigned long long *errors) {
  int result = usable(gpu);
  (void)counter;
  if (result == SUCCESS) *errors = kind == 1 ? gpu->uncorrected : 0;
  return result;
}

int nvmlDeviceGetTemperature(gpu_t *gpu, int sensor, unsigned *celsius) {
  int result = usable(gpu);
  if (result == SUCCESS && sensor != 0) return INVALID_ARGUMENT;
  if (result == SUCCESS) *celsius = gpu->temperature;
  return result;
}

int nvmlDeviceGetUtilizationRates(gpu_t *gpu, utilisation_t *rates) {
  int result = usable(gpu);
  if (result == SUCCESS) *rates = (utilisation_t){gpu->utilisation, 0};
  return result;
}
