/* Compiled on first use, see compiler.py. Each routine exists in float and in double, and returns 0, or 1 if
   memory ran out. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_(name, type) name##_##type
#define JOIN(name, type) JOIN_(name, type)
#define N(name) JOIN(name, REAL)

#define REAL float
#include "sparse_conv.h"
#include "batch_norm.h"
#undef REAL

#define REAL double
#include "sparse_conv.h"
#include "batch_norm.h"
