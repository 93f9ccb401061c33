/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes a few frames of a moving picture with libx264's own choice of assembly, in one thread.  Only the calls that
   it needs are declared, and settings are given by name.  */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <x264.h>

enum { WIDTH = 176, HEIGHT = 144, FRAMES = 6 };

int main(int argc, char **argv)
{
  x264_param_t settings;
  x264_picture_t in, out;
  x264_nal_t *nals;
  x264_t *encoder;
  long total = 0;
  int i, count, frame;

  if (x264_param_default_preset(&settings, argc > 1 ? argv[1] : "medium", NULL) != 0)
    return 1;
  settings.i_threads = 1;
  settings.i_lookahead_threads = 1;
  settings.i_sync_lookahead = 0;
  settings.i_width = WIDTH;
  settings.i_height = HEIGHT;
  settings.i_csp = X264_CSP_I420;
  settings.i_log_level = X264_LOG_ERROR;
  settings.b_interlaced = argc > 2;
  encoder = x264_encoder_open(&settings);
  if (encoder == NULL || x264_picture_alloc(&in, X264_CSP_I420, WIDTH, HEIGHT) != 0)
    return 1;
  for (frame = 0; frame < FRAMES || x264_encoder_delayed_frames(encoder) > 0; frame++) {
    for (i = 0; i < WIDTH * HEIGHT; i++)
      in.img.plane[0][i] = (uint8_t)((i % WIDTH + 3 * frame) * (i / WIDTH + frame) >> 5);
    for (i = 0; i < WIDTH * HEIGHT / 4; i++)
      in.img.plane[1][i] = in.img.plane[2][i] = (uint8_t)(i * 7 + frame * 11);
    in.i_pts = frame;
    if (x264_encoder_encode(encoder, &nals, &count, frame < FRAMES ? &in : NULL, &out) < 0)
      return 1;
    for (i = 0; i < count; i++)
      total += nals[i].i_payload;
  }
  printf("%ld bytes\n", total);
  x264_encoder_close(encoder);
  return 0;
}
