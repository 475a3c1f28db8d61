#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sched.h>
#include <immintrin.h>
static void pin(int c){cpu_set_t s;CPU_ZERO(&s);CPU_SET(c,&s);sched_setaffinity(0,sizeof s,&s);}
static double now(){struct timespec a;clock_gettime(CLOCK_MONOTONIC,&a);return a.tv_sec+a.tv_nsec*1e-9;}
float*buf;size_t n;
static void wr(){for(size_t i=0;i<n;i+=8)_mm256_store_ps(buf+i,_mm256_set1_ps(1.f));}
__attribute__((noinline)) static float rd(){__m256 s=_mm256_setzero_ps(),s2=s,s3=s,s4=s;for(size_t i=0;i<n;i+=32){s=_mm256_add_ps(s,_mm256_load_ps(buf+i));s2=_mm256_add_ps(s2,_mm256_load_ps(buf+i+8));s3=_mm256_add_ps(s3,_mm256_load_ps(buf+i+16));s4=_mm256_add_ps(s4,_mm256_load_ps(buf+i+24));}return s[0]+s2[0]+s3[0]+s4[0];}
static void*w1(void*a){pin(1);wr();return 0;}
static void*w0(void*a){pin(0);wr();return 0;}
int main(){for(size_t kb=128;kb<=16384;kb*=2){n=kb*256;buf=aligned_alloc(4096,n*4);memset(buf,0,n*4);pin(0);double b0=1e9,b1=1e9,b2=1e9;
for(int r=0;r<60;r++){pthread_t p;pthread_create(&p,0,w1,0);pthread_join(p,0);double t=now();volatile float x=rd();t=now()-t;if(t<b1)b1=t;
t=now();x=rd();t=now()-t;if(t<b2)b2=t;
wr();t=now();x=rd();t=now()-t;if(t<b0)b0=t;}
printf("%6zu KB own-written %.1f GB/s, other-written %.1f, clean again %.1f\n",kb,n*4/b0*1e-9,n*4/b1*1e-9,n*4/b2*1e-9);free(buf);}}
