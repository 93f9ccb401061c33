/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler's report.  */

#define _GNU_SOURCE
#include "sampler.h"

#include <limits.h>
#include <unistd.h>

static const char *const outcome_names[OUTCOME_COUNT] = {
    "equal", "ended", "longer", "different", "unaligned", "faulted"};

static void put_string(FILE *out, const char *text)
{
  fputc('"', out);
  for (; *text != '\0'; text++) {
    unsigned char byte = (unsigned char)*text;
    if (byte == '"' || byte == '\\')
      fprintf(out, "\\%c", byte);
    else if (byte < 0x20)
      fprintf(out, "\\u%04x", byte);
    else
      fputc(byte, out);
  }
  fputc('"', out);
}

/* The loader calls the program itself "".  */
static void put_module_name(FILE *out, const char *name)
{
  char program[PATH_MAX];
  ssize_t size;

  if (name[0] != '\0') {
    put_string(out, name);
    return;
  }
  size = readlink("/proc/self/exe", program, sizeof program - 1);
  program[size > 0 ? size : 0] = '\0';
  put_string(out, program);
}

static void put_place(FILE *out, const struct results *results,
                      const struct place *place)
{
  fprintf(out, "{\"pc\": \"0x%llx\", \"module\": ",
          (unsigned long long)place->pc);
  if (place->name_index == NO_NAME)
    fputs("null", out);
  else
    put_module_name(out, results->names[place->name_index]);
  fprintf(out, ", \"offset\": \"0x%llx\"}", (unsigned long long)place->offset);
}

static void put_places(FILE *out, const struct results *results,
                       const char *key, const struct place *places,
                       unsigned count)
{
  unsigned index;

  fprintf(out, ", \"%s\": [", key);
  for (index = 0; index < count; index++) {
    if (index > 0)
      fputs(", ", out);
    put_place(out, results, &places[index]);
  }
  fputc(']', out);
}

static void put_summary(FILE *out, const struct results *results)
{
  int index;
  const char *separator = "";

  fprintf(out, "{\"record\": \"summary\", \"pid\": %ld, \"samples\": %lu",
          (long)results->owner, results->samples);
  fprintf(out, ", \"dropped_samples\": %lu, \"frames\": %lu",
          results->dropped_samples, results->frames);
  for (index = 0; index < OUTCOME_COUNT; index++)
    fprintf(out, ", \"%s\": %lu", outcome_names[index],
            results->outcomes[index]);
  fprintf(out, ", \"lost_stops\": %lu, \"endings\": {", results->lost_stops);
  for (index = 0; index < SFRAME_ENDING_COUNT; index++) {
    if (results->endings[index] == 0)
      continue;
    fprintf(out, "%s\"%s\": %lu", separator,
            sframe_ending_name((enum sframe_ending)index),
            results->endings[index]);
    separator = ", ";
  }
  fputs("}}\n", out);
}

static void put_modules(FILE *out, const struct results *results,
                        const struct sframe_modules *modules)
{
  static const char *const states[] = {"without", "bad", "good"};
  unsigned index;

  for (index = 0; index < modules->count; index++) {
    const struct sframe_module *module = &modules->items[index];
    fprintf(out, "{\"record\": \"module\", \"pid\": %ld, \"module\": ",
            (long)results->owner);
    put_module_name(out, module->name);
    fprintf(out,
            ", \"bias\": \"0x%llx\", \"state\": \"%s\", \"version\": %u, "
            "\"functions\": %lu}\n",
            (unsigned long long)module->bias, states[module->state],
            module->section.version,
            (unsigned long)module->section.function_count);
  }
}

static void put_stops(FILE *out, const struct results *results)
{
  unsigned index;

  for (index = 0; index < results->stop_count; index++) {
    const struct stop *stop = &results->stops[index];
    fprintf(out,
            "{\"record\": \"stop\", \"pid\": %ld, \"ending\": \"%s\", "
            "\"outcome\": \"%s\", \"count\": %lu, \"place\": ",
            (long)results->owner, sframe_ending_name(stop->ending),
            outcome_names[stop->outcome], stop->count);
    put_place(out, results, &stop->place);
    fputs("}\n", out);
  }
}

static void put_examples(FILE *out, const struct results *results)
{
  unsigned index;

  for (index = 0; index < results->example_count; index++) {
    const struct example *example = &results->examples[index];
    fprintf(out,
            "{\"record\": \"example\", \"pid\": %ld, \"outcome\": \"%s\", "
            "\"ending\": \"%s\", \"first_difference\": %u, "
            "\"window_start\": %u, \"walk_count\": %u, \"backtrace_count\": %u",
            (long)results->owner, outcome_names[example->outcome],
            sframe_ending_name(example->ending), example->first_difference,
            example->window_start, example->walk_count, example->trace_count);
    put_places(out, results, "walk", example->walk, example->walk_kept);
    put_places(out, results, "backtrace", example->trace, example->trace_kept);
    fputs("}\n", out);
  }
}

void sampler_put_report(FILE *out, const struct results *results,
                        const struct sframe_modules *modules)
{
  put_summary(out, results);
  put_modules(out, results, modules);
  put_stops(out, results);
  put_examples(out, results);
}
